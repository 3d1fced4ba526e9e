// Sets the colours before anything is drawn; what is not kept follows the system.
document.documentElement.dataset.theme = localStorage.getItem("vllm-lite.theme") ?? "auto"
