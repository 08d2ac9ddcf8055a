// names for what the theme leaves without one, and tables that scroll by keyboard
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const name = () => {
    document.querySelectorAll(".md-code__nav").forEach((nav, place) => nav.setAttribute("aria-label", `Code ${place + 1}`));
    document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => { table.tabIndex = 0; });
  };
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
  name();
});
