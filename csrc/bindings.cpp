#include <nanobind/nanobind.h>
NB_MODULE(_cpu, m) { m.attr("__doc__") = "CPU kernels"; }
