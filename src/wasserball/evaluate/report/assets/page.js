// Theme, tooltips of the charts, and the small controls of the page.
"use strict";
{
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try { return localStorage.getItem("wasserball-theme"); } catch { return null; }  // a browser may forbid it
  };
  if (remembered()) root.dataset.theme = remembered();
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("wasserball-theme", root.dataset.theme); } catch { /* then only for now */ }
  });

  const tip = document.getElementById("tip");
  const dot = (mark) => mark.querySelector(".dot, .bar").getBoundingClientRect();
  // Of marks that lie on each other the mouse finds but one, so all of them speak.
  const together = (mark, marks) => {
    const here = dot(mark);
    return marks.filter((other) => {
      const there = dot(other);
      return there.width && Math.hypot(there.x - here.x, there.y - here.y) < 6;
    });
  };
  const say = (mark, marks) => {
    const box = dot(mark);
    tip.textContent = [...new Set(marks.map((one) => one.dataset.tip).reverse())].join("\n");
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const most = root.clientWidth - width - 8;
    tip.style.left = `${Math.max(8, Math.min(most, box.left + box.width / 2 - width / 2)) + scrollX}px`;
    const above = box.top - height - 10;
    tip.style.top = `${(above > 4 ? above : box.bottom + 10) + scrollY}px`;
  };
  const hush = () => { tip.hidden = true; };
  for (const chart of document.querySelectorAll("svg.chart")) {
    const marks = [...chart.querySelectorAll(".mark")];
    // One stop for the tab key; the arrow keys go from mark to mark.
    if (marks.length) marks[0].setAttribute("tabindex", "0");
    chart.addEventListener("pointerover", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) say(mark, together(mark, marks)); else hush();
    });
    chart.addEventListener("pointerleave", hush);
    chart.addEventListener("focusin", (event) => say(event.target, [event.target]));
    chart.addEventListener("focusout", hush);
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hush();
      if (!step) return;
      event.preventDefault();
      const seen = marks.filter((mark) => mark.getClientRects().length);
      const next = seen[(seen.indexOf(event.target) + step + seen.length) % seen.length];
      for (const mark of marks) mark.setAttribute("tabindex", mark === next ? "0" : "-1");
      next.focus();
    });
  }

  const histogram = document.getElementById("histogram");
  const choose = () => {
    for (const figure of document.querySelectorAll(".histogram")) figure.hidden = figure.id !== histogram.value;
  };
  histogram.addEventListener("change", choose);
  choose();  // a browser may remember another choice than the first

  const extra = document.getElementById("extra");
  if (extra) {
    const show = () => document.getElementById("plot0").classList.toggle("all", extra.checked);
    extra.addEventListener("change", show);
    show();
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }
}
