// The gallery: which cards there are, the lens over the one that is pointed at, and the larger view.
"use strict";
{
  const CARDS = innerWidth < 720 ? 12 : 24;
  const WORDS = { f: "fooled", h: "holds", w: "wrong from the start" };
  const element = (id) => document.getElementById(id);
  const pairs = pictures.read("data");
  const [model, attack, radius, sort] = ["model", "attack", "radius", "sort"].map(element);
  const [cards, lens, viewer] = ["cards", "lens", "viewer"].map(element);
  let set = null, order = [], page = 0, open = -1, turn = 0;

  const make = (name, className, ...content) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...content);
    return made;
  };
  const which = () => Number(model ? model.value : 0);
  const outcome = () => document.querySelector("input[name=outcome]:checked").value;
  const number = (value, digits) => value === null ? "–" : String(Number(value.toPrecision(digits)));
  const title = (label) => set.common.classes && set.common.classes[label] !== undefined ? set.common.classes[label] : String(label);

  const refill = (select, words) => {
    const before = select.value;
    select.replaceChildren(...words.map((word) => new Option(word)));
    if (words.includes(before)) select.value = before;
  };
  const offer = () => {
    refill(attack, [...new Set(pairs[which()].map((pair) => pair.attack))]);
    refill(radius, pairs[which()].filter((pair) => pair.attack === attack.value).map((pair) => pair.eps));
  };

  const load = async () => {
    const mine = ++turn;
    offer();
    const pair = pairs[which()].findIndex((one) => one.attack === attack.value && one.eps === radius.value);
    const loaded = await pictures.open(which(), pair);
    if (mine !== turn) return;  // another choice was made meanwhile
    set = loaded;
    for (const about of document.querySelectorAll(".about")) about.hidden = Number(about.dataset.model) !== which();
    for (const count of document.querySelectorAll("[data-count]")) {
      const kind = count.dataset.count;
      count.textContent = kind ? [...set.shots.outcome].filter((letter) => letter === kind).length : set.shots.outcome.length;
    }
    arrange();
  };

  const arrange = () => {
    const wanted = outcome(), column = sort.value === "index" ? set.common.index : set.shots[sort.value];
    order = [...set.shots.outcome].flatMap((letter, place) => !wanted || letter === wanted ? [place] : []);
    order.sort((a, b) => (column[a] ?? Infinity) - (column[b] ?? Infinity) || a - b);
    page = 0;
    draw();
  };

  const draw = () => {
    hide();
    const pages = Math.max(1, Math.ceil(order.length / CARDS));
    const places = order.slice(page * CARDS, (page + 1) * CARDS);
    cards.replaceChildren(...places.map(card));
    if (!places.length) cards.append(make("p", "empty", "No sample in this gallery has this outcome."));
    element("page").textContent = `page ${page + 1} of ${pages}`;
    element("back").disabled = page === 0;
    element("forth").disabled = page === pages - 1;
  };

  const verdict = (place) => {
    const label = title(set.common.label[place]), answer = title(set.shots.prediction[place]);
    return { label, answer, kind: set.shots.outcome[place], valid: set.shots.valid[place] === "1" };
  };

  const card = (place) => {
    const { label, answer, kind, valid } = verdict(place), distance = number(set.shots.distance[place], 3);
    const made = make("button", `card ${kind}`);
    made.type = "button";
    made.dataset.place = place;
    const words = `sample ${set.common.index[place]}, ${label} seen as ${answer}, ${WORDS[kind]}, distance ${distance}, ${valid ? "valid" : "not valid"}`;
    made.setAttribute("aria-label", words);
    made.append(
      make("span", "strip", pictures.clean(set, place), pictures.adversarial(set, place), pictures.moved(set, place)),
      make("span", "line", make("b", "", label), make("span", "to", " → "), make("b", "answer", answer), make("span", "tag", WORDS[kind])),
      make("span", "line small", `#${set.common.index[place]}`, make("span", "", `distance ${distance}`), make("span", valid ? "ok" : "bad", valid ? "✓ valid" : "✕ not valid")),
    );
    return made;
  };

  // The lens: an enlarged picture with arrows, beside the card.
  const show = (target) => {
    if (viewer.open) return;
    const stage = make("div", "stage");
    lens.replaceChildren(stage, make("p", "", pictures.transport(stage, set, Number(target.dataset.place))));
    lens.hidden = false;
    const box = target.getBoundingClientRect(), size = lens.getBoundingClientRect(), room = document.documentElement;
    const right = box.right + 8 + size.width < room.clientWidth, left = box.left - 8 - size.width > 0;
    const x = right ? box.right + 8 : left ? box.left - 8 - size.width : box.left + box.width / 2 - size.width / 2;
    const y = right || left ? box.top + box.height / 2 - size.height / 2 : box.bottom + 8;
    lens.style.left = `${Math.max(8, Math.min(room.clientWidth - size.width - 8, x)) + scrollX}px`;
    lens.style.top = `${Math.max(8, Math.min(room.clientHeight - size.height - 8, y)) + scrollY}px`;
  };
  const hide = () => { lens.hidden = true; };

  const look = () => {
    const place = order[open], { label, answer, kind, valid } = verdict(place), { shots, common } = set;
    element("viewer-title").textContent = `${label} → ${answer}`;
    element("transport-words").textContent = `Clean image, ${pictures.transport(element("transport"), set, place)}`;
    element("strip").replaceChildren(...[["clean", pictures.clean], ["adversarial", pictures.adversarial], ["what moved", pictures.moved]].map(
      ([words, picture]) => make("figure", "", picture(set, place), make("figcaption", "", words))));
    const facts = {
      sample: `#${common.index[place]}`,
      outcome: WORDS[kind],
      label,
      prediction: answer,
      attack: `${attack.value}, eps ${radius.value}`,
      distance: number(shots.distance[place], 4),
      margin: number(shots.margin[place], 4),
      "largest change": `${number(shots.scale[place] * 255, 3)} of 255 levels`,
      certificate: valid ? "✓ valid" : "✕ not valid",
    };
    element("facts").replaceChildren(...Object.entries(facts).map(([key, value]) => make("div", "", make("dt", "", key), make("dd", "", value))));
    element("place").textContent = `${open + 1} of ${order.length}`;
    element("previous").disabled = open === 0;
    element("following").disabled = open === order.length - 1;
  };
  const go = (step) => {
    const next = open + step;
    if (next < 0 || next >= order.length) return;
    open = next;
    look();
  };

  for (const select of [model, attack, radius]) if (select) select.addEventListener("change", load);
  sort.addEventListener("change", arrange);
  for (const input of document.querySelectorAll("input[name=outcome]")) input.addEventListener("change", () => set && arrange());
  element("back").addEventListener("click", () => { page--; draw(); cards.scrollIntoView({ block: "nearest" }); });
  element("forth").addEventListener("click", () => { page++; draw(); cards.scrollIntoView({ block: "nearest" }); });

  cards.addEventListener("pointerover", (event) => {
    const target = event.target.closest(".card");
    if (target && event.pointerType !== "touch") show(target); else hide();
  });
  cards.addEventListener("pointerleave", hide);
  cards.addEventListener("focusin", (event) => { if (event.target.matches(".card:focus-visible")) show(event.target); });
  cards.addEventListener("focusout", hide);
  cards.addEventListener("click", (event) => {
    const target = event.target.closest(".card");
    if (!target) return;
    hide();
    open = order.indexOf(Number(target.dataset.place));
    look();
    viewer.showModal();
  });
  cards.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const all = [...cards.querySelectorAll(".card")], now = all.indexOf(event.target);
    const columns = all.filter((one) => one.offsetTop === all[0].offsetTop).length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (now < 0 || !step || !all[now + step]) return;
    event.preventDefault();
    all[now + step].focus();
  });
  viewer.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go(step);
  });
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  viewer.addEventListener("close", () => {
    // Back to the card that was looked at last, wherever it is.
    const there = Math.floor(open / CARDS);
    if (there !== page) { page = there; draw(); }
    const target = cards.querySelector(`[data-place="${order[open]}"]`);
    if (target) target.focus();
  });
  element("close").addEventListener("click", () => viewer.close());
  element("previous").addEventListener("click", () => go(-1));
  element("following").addEventListener("click", () => go(1));

  offer();
  const near = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    near.disconnect();
    load();
  }, { rootMargin: "600px" });
  near.observe(element("gallery"));
}
