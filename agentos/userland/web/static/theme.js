// The chosen theme, before anything is drawn.
const chosen = localStorage.getItem("agentos-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
