"""Codebooks of GGUF's types: vectors of 4 or 8 small integers, from ggml's tables.

The vectors of a book are in order as numbers, the first value the lowest digit; what is kept is how
far each is from the one before it.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class _Book(NamedTuple):
    """`digits` are what digits stand for; differences are multiples of `step`."""

    digits: tuple[int, ...]
    size: int
    step: int
    differences: str


@cache
def book_of(ggml_type: int) -> Tensor:
    """The vectors [count, 4 or 8] int8 of a type: magnitudes, or -1, 0 and 1."""
    book = _BOOKS[ggml_type]
    differences = zlib.decompress(base64.b85decode(book.differences))
    numbers = np.frombuffer(differences, np.uint8).cumsum(dtype=np.int64) * book.step
    base = len(book.digits)
    places = numbers[:, None] // base ** np.arange(book.size) % base
    return torch.from_numpy(np.array(book.digits, np.int8)[places])


_BOOKS = {
    16: _Book(  # IQ2_XXS
        (8, 25, 43),
        8,
        2,
        "c-kdTL2|+{46H0mLAGNjCLu{D&2)eaFy+7xdf>zt`h|Xjha<N-tTel;S?LY_3c(aaqZ6_PG*w~-"
        "$u%Gql@+=4$^iwCB*n|c??agBpgt?Cd&pvGq)A0~ebZKZK#8^44?94=u`t;Y&dOC?bhp6c_xpb^TB9K%(VAd"
        "`rG%U}o|cP}X6g;ijfNs*4E1n0Ls+*xVY4hJl#sePW%C8Y{TI;1$ozRMUr26R?__(qu6qCAyN}7y^=J2JeOh"
        "nN@dZ4s41x",
    ),
    17: _Book(  # IQ2_XS
        (8, 25, 43),
        8,
        2,
        "c-mc%(N4oK3`KElC$Uq~W-"
        "aZuifKXuUO+<PfnVVNzX+#er7ThsE4Hss?j3BFTW?%W2mF`3JR#baOUQsOklr+b<81{~1`G~z^DE=fM7)rNl"
        "2HXm$2StVBv%RX5G)qiU7s9yG+CK_+FMWbn%wmCa3!rhQV)!smd08l%$YkMPd1&ChDYD{-"
        "obzNE8S+Yi)5()^XiAuL_m)tQ^Kj15EWLN^tv%9S8L$d9x4q93*jDzE|HH^GQ(F>g~%&>hBk&5apT+Za4uA~"
        "2Bd{e7<>DA#Dy|Q)OON7V@wQ*J_-`oks&skpH<yG;<<<Medtf!t}@d!VKI8mvKzit&A&b33={P62PTUQ(E",
    ),
    18: _Book(  # IQ3_XXS
        (4, 12, 20, 28, 36, 44, 52, 62),
        4,
        1,
        "c-"
        "kF}K~ID*6ol>Y=mSb06<WIncY$3=(2yAM>`lE9|Np<Sc$j2nGWq5X$UzERK7x{E%D|>BQq5pcrG>PDxph7_H"
        "Ar{vBYHv*cdV0O)CtUZJ2GE2q_ob^ZK1ZScNzajl$8UJ(A<+MzzJ!U^-"
        "L>Ga`ILG4HKV^$6)gVVbCMD!8Pq?(`jAzLmQUhji9F8H_GYz%P^Zs!k$647z^#<AY<`zPTxiRU1f8S^LUw`_"
        "0KfFFR}rub!+w7=MPrG<OZ}~fB7vBnE",
    ),
    19: _Book(  # IQ1_S
        (-1, 0, 1),
        8,
        1,
        "c-"
        "n1M*Mi$H3@e8yd1Umx|Nor@NGW!%)#YqagA<^CDTg(6ZJ|1H!iNh)l@?Bc)Bd&JA{v(QGvn*PW<<El3ojKJS"
        "Wt+9xz^Z>Pl!)HmFi7gaoCSbtKUtiH;EyJ$%*4}w{CD6BgI|vq^7fCINL0yQ7i?#;D9g&48Ivj%cvY)({reV"
        "qvp-hTRgCfRV(+g!-"
        "Y>In6=a>b5UwCqs{o!p4T?CiYYhYw+=sjL^)UcNW%W4Xgy7*9`|9TW9wb}42KzW+ba`HK&9dm5pNfd@{)0)Q"
        "lAq0T|$XsRH&HXqS?vfRTi<jGyWX71VgwhEW+4tHQKWR%%s6ICy^I$L)KOrZucsmUW(st07<4I6Q<K~KyQ{0"
        "YUIcwL6iH|_Bd^eRfTzo$HHV~)aRRd%+zD&lUZs;&aSJLl_Z?$OxgkzdYjOX3<%o!m&dZMg@!~YtHog6tUb1"
        "$dlZI}B3^bw3BJVq#LM(bKVm7(o3Y|>>L-"
        "`x#@3QJn?%L7NG0_@pXmsf5&Lph?vP#9<TG@cw<Xv*sT02Iw3*yT5hQ2kyhL_n<h_-"
        "5rKcpn>J;&B=!TIiF|4~d6ITYaR=u1$6TIP*lJ-"
        "bKA#HFJgn)%eI+Mh}+93|4+XKjZk?86dlT#nM%<@ycdXqjEf;4S*%q=e?z6O9#>QsWj-NkoPdm*%>0w{xy7L"
        "$)AGI8!k9c)%Ej|mj9-"
        "mRKg5lntGy~3iGN#ruv1Fr*UqnGeN%j_hvquWNpsNzlrT%AnEvzjnmV_mF8Psmk=B)TIzeEC4LBUWqGegEO$"
        "<3@6nFp|(imhX#kd^agTkL1jZEynZ;)zza?I(*F9;D-"
        "&~iiw~CjOhPxq`ody4+At?f{92D#NsRnfwZ%!dcs&X`aCXlEQhOoSTP(uaN9<GUQUAe@l~bkgO>D^mljRYD-"
        "D&w$JBo|#ovfNY<(=^&&<MX1hLq!Z-!w*lOzUgyCm`^XpS%I11&uUn}{CmaUJ=1`xnWK8KD",
    ),
    21: _Book(  # IQ3_S
        (1, 3, 5, 7, 9, 11, 13, 15),
        4,
        1,
        "c-keA+fKtk3`E)SE%DwGn$m`XR8*u2-"
        "Vy)*XL!rgt}T1!*nUchkWvDWSOpXxff0=yCnjRBRTfQ*L=h6}D5^9m6AYw`3Z~5QRnqP#h<ZksOlWI2JTjHH"
        "hvu*f2Q<*EDI8gh)X)@8gF?y42SVs2mQ`~gRalT5AC>*iRB;)gg;$;aB{8HzdAv2IA}9_1=r|KO#Ng~P5Ai%"
        "&wPl^jh<7rXYsz(k_#1Crk>%Bfpp9)1TqnQ+VsVZjCftoB+-"
        "9)0Nri1yt`>dn^>DZbZob7N;cvFMM7K(W8${TplNK2ae8Y22dx3xK>voo$b=Q!Lz7p36=J~3#i`J8*UZuoxi"
        "kHuF!0#39cWm~!EcX8LtXXs_(tlcSv~S1D7k-%LC@8vE?syxQvvogHdx=w@znAOj{s-R}55W",
    ),
    22: _Book(  # IQ2_S
        (8, 25, 43),
        8,
        2,
        "c-"
        "nnaL2`pI46G&DmVwYvl4b(aL$AGd^8c?@!r0h^l$j9OQdYYw<;@fiJbfd;mc*2Tc);}rDHeDDAlhN12a6x(6"
        "4+s*U4deZA$Kfk0Qraq6bmU>BcUDK)*Na*P`9o{E^k&oB1t}6c78#!zQB+vpOQ98$u3uMYccpssY)OS38Er("
        "5+e*brPCQM9p5+e(94O($oV9s@vC*cGtGg}I0b}qk|ujn;_EfSM*gK|&sL~_un}!Bxwz(Cne|>?^YP-XGx^7"
        "9HvLh0i+VL^&S$b}*38!?uSXPFabhpL&IAQWAolz%245O?`uU`F9)M{Haao><x3JUcN^nag>4+mWS~|x8j%2"
        "!aYK;pN@vxM=l+Y;Q9d;gGfzCXr+{p~^2>M6VbsDj62b4{E2VEo#gGc_I_<n18V-0*Xf9vE7(E",
    ),
}
# Two types have one book.
_BOOKS[29] = _BOOKS[19]
BOOK_TYPES = tuple(_BOOKS)
