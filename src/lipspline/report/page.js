// What the page can do: compare two images, zoom and move all of them together, change the window of grey values, and
// leaf through the slices of a volume.
"use strict";
(() => {
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  function activate(section) {
    const find = (selector) => section.querySelector(selector);
    const stage = find(".stage");
    const field = (name) => section.querySelector(`[name="${name}"]`);
    const pictures = [...section.querySelectorAll(".gallery figure.grey")].map((figure) => ({
      image: figure.querySelector("img"),
      name: figure.querySelector("figcaption").textContent,
    }));
    const low = Number(section.dataset.low);
    const high = Number(section.dataset.high);
    const unit = section.dataset.unit ? ` ${section.dataset.unit}` : "";
    const view = { zoom: 1, x: 0, y: 0 };

    // Which two images are on the stage, and where they meet.
    function choose(side) {
      const picture = pictures[Number(field(side).value)];
      const image = find(`.stage .${side} img`);
      image.src = picture.image.src;
      image.alt = picture.name;
      find(`.tag-${side}`).textContent = picture.name;
    }
    function split(percent) {
      field("split").value = percent;
      stage.style.setProperty("--split", `${percent}%`);
      field("split").setAttribute("aria-valuetext", `${Math.round(percent)} % ${find(".tag-left").textContent}`);
    }

    // Zoom and position are shared by every frame of the section; positions are percentages of a frame.
    function look(zoom, x, y) {
      const reach = (zoom - 1) * 50;
      Object.assign(view, { zoom, x: clamp(x, -reach, reach), y: clamp(y, -reach, reach) });
      section.style.setProperty("--zoom", view.zoom);
      section.style.setProperty("--x", view.x);
      section.style.setProperty("--y", view.y);
      section.classList.toggle("zoomed", zoom > 1);
      section.classList.toggle("close", zoom >= 3);
      field("zoom").value = Math.log2(zoom);
      field("zoom-text").value = `${zoom.toFixed(zoom < 10 ? 1 : 0).replace(".0", "")}×`;
    }
    function zoomTo(zoom, x = 0, y = 0) {
      // Keep the point (x, y), in percent from the middle of the frame, where it is.
      const next = clamp(zoom, 1, 32);
      const ratio = next / view.zoom;
      look(next, x + (view.x - x) * ratio, y + (view.y - y) * ratio);
    }

    // Grey values: an SVG filter maps [level - width/2, level + width/2] to black and white.
    function shade() {
      const width = Number(field("width").value) / 100;
      const level = Number(field("level").value) / 100;
      field("width-text").value = number((high - low) * width);
      field("level-text").value = number(low + level * (high - low));
      for (const part of section.querySelectorAll("feFuncR, feFuncG, feFuncB")) {
        part.setAttribute("slope", 1 / width);
        part.setAttribute("intercept", 0.5 - level / width);
      }
    }
    function number(value) {
      return (unit === "" ? value.toPrecision(3) : value.toFixed(0)) + unit;
    }
    for (const button of section.querySelectorAll("[name=preset]")) {
      button.addEventListener("click", () => {
        const [from, to] = [Number(button.dataset.low), Number(button.dataset.high)];
        field("width").value = (100 * (to - from)) / (high - low);
        field("level").value = (100 * ((from + to) / 2 - low)) / (high - low);
        shade();
      });
    }

    // The values below the pointer, as exact as the 256 shades of the page.
    const planes = new Map();
    function plane(picture) {
      if (!planes.has(picture)) {
        const canvas = document.createElement("canvas");
        canvas.width = picture.image.naturalWidth;
        canvas.height = picture.image.naturalHeight;
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.drawImage(picture.image, 0, 0);
        planes.set(picture, context.getImageData(0, 0, canvas.width, canvas.height));
      }
      return planes.get(picture);
    }
    function read(event, frame) {
      const box = frame.getBoundingClientRect();
      const inside = (at, start, size, offset) => ((at - start) / size - 0.5 - offset / 100) / view.zoom + 0.5;
      const u = inside(event.clientX, box.left, box.width, view.x);
      const v = inside(event.clientY, box.top, box.height, view.y);
      if (u < 0 || u >= 1 || v < 0 || v >= 1) return;
      const texts = pictures.map((picture) => {
        const data = plane(picture);
        const pixel = (Math.floor(v * data.height) * data.width + Math.floor(u * data.width)) * 4;
        return `${picture.name} ${number(low + (data.data[pixel] / 255) * (high - low))}`;
      });
      const { width, height } = plane(pictures[0]);
      find(".readout").textContent = `Row ${Math.floor(v * height)}, column ${Math.floor(u * width)}: ${texts.join(", ")}`;
    }

    // Pointers: drag the divider, or move the images when they are enlarged; two fingers zoom.
    const touches = new Map();
    function follow(frame) {
      let moving = null;
      const percent = (event) => {
        const box = frame.getBoundingClientRect();
        return { x: ((event.clientX - box.left) / box.width) * 100, y: ((event.clientY - box.top) / box.height) * 100 };
      };
      const spread = () => {
        const [a, b] = [...touches.values()];
        return Math.hypot(a.x - b.x, a.y - b.y);
      };
      frame.addEventListener("pointerdown", (event) => {
        const at = percent(event);
        touches.set(event.pointerId, at);
        const nearDivider = Math.abs(at.x - Number(field("split").value)) < 5;
        const kind = frame === stage && (nearDivider || view.zoom === 1) ? "split" : "move";
        moving = touches.size === 2 ? { kind: "pinch", zoom: view.zoom, spread: spread() } : { kind, at, x: view.x, y: view.y };
        frame.setPointerCapture(event.pointerId);
        section.classList.add("dragging");
        if (moving.kind === "split") split(clamp(at.x, 0, 100));
      });
      frame.addEventListener("pointermove", (event) => {
        read(event, frame);
        if (!moving || !touches.has(event.pointerId)) return;
        const at = percent(event);
        touches.set(event.pointerId, at);
        if (moving.kind === "pinch" && touches.size === 2) zoomTo((moving.zoom * spread()) / moving.spread);
        else if (moving.kind === "split") split(clamp(at.x, 0, 100));
        else if (moving.kind === "move") look(view.zoom, moving.x + at.x - moving.at.x, moving.y + at.y - moving.at.y);
      });
      const end = (event) => {
        touches.delete(event.pointerId);
        moving = null;
        section.classList.remove("dragging");
      };
      frame.addEventListener("pointerup", end);
      frame.addEventListener("pointercancel", end);
      frame.addEventListener("dblclick", (event) => {
        const at = percent(event);
        zoomTo(view.zoom > 1 ? 1 : 4, at.x - 50, at.y - 50);
      });
      frame.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && view.zoom === 1) return; // the wheel scrolls the page until an image is enlarged
        event.preventDefault();
        const at = percent(event);
        zoomTo(view.zoom * 2 ** (-event.deltaY / 300), at.x - 50, at.y - 50);
      }, { passive: false });
    }
    const KEYS = {
      "+": () => zoomTo(view.zoom * 1.25), "=": () => zoomTo(view.zoom * 1.25), "-": () => zoomTo(view.zoom / 1.25),
      "0": () => look(1, 0, 0),
      ArrowLeft: () => look(view.zoom, view.x + 10, view.y), ArrowRight: () => look(view.zoom, view.x - 10, view.y),
      ArrowUp: () => look(view.zoom, view.x, view.y + 10), ArrowDown: () => look(view.zoom, view.x, view.y - 10),
    };
    stage.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || !(event.key in KEYS)) return;
      if (event.key.startsWith("Arrow") && view.zoom === 1) return;
      event.preventDefault();
      KEYS[event.key]();
    });

    follow(stage);
    section.querySelectorAll(".gallery .frame").forEach(follow);
    field("split").addEventListener("input", (event) => split(Number(event.target.value)));
    field("zoom").addEventListener("input", (event) => zoomTo(2 ** Number(event.target.value)));
    for (const side of ["left", "right"]) field(side).addEventListener("change", () => choose(side));
    for (const name of ["width", "level"]) field(name).addEventListener("input", shade);
    field("restart").addEventListener("click", () => {
      find(".controls").reset();
      start();
    });
    function start() {
      choose("left");
      choose("right");
      split(50);
      look(1, 0, 0);
      shade();
    }
    for (const image of section.querySelectorAll(".stage img")) image.style.filter = `url(#window-${section.id})`;
    start();

    // How it is looked at, to look at the next slice in the same way.
    const fields = ["left", "right", "split", "width", "level"];
    return {
      state: () => ({ ...view, values: fields.map((name) => field(name).value) }),
      take(state) {
        fields.forEach((name, k) => { field(name).value = state.values[k]; });
        choose("left");
        choose("right");
        split(Number(field("split").value));
        look(state.zoom, state.x, state.y);
        shade();
      },
    };
  }

  // The slices of a volume: one at a time, chosen by the slider, the table, or the wheel and the page keys on the stage.
  function browse(volume) {
    const sections = [...volume.querySelectorAll(".case")];
    const views = sections.map(activate);
    const slider = volume.querySelector("[name=slice]");
    let current = Number(slider.value);
    function go(next, focus = false) {
      const state = views[current].state();
      current = clamp(next, 0, sections.length - 1);
      slider.value = current;
      sections.forEach((section, k) => { section.hidden = k !== current; });
      views[current].take(state);
      const name = sections[current].querySelector("h2").textContent;
      volume.querySelector("[name=slice-text]").value = name.replace(/^Slice /, "");
      slider.setAttribute("aria-valuetext", name);
      for (const link of volume.querySelectorAll(".slices a")) {
        link.closest("tr").classList.toggle("current", link.hash === `#${sections[current].id}`);
      }
      if (focus) sections[current].querySelector(".stage").focus({ preventScroll: true });
    }
    slider.addEventListener("input", () => go(Number(slider.value)));
    volume.querySelectorAll(".slices a").forEach((link) => link.addEventListener("click", (event) => {
      event.preventDefault();
      go(sections.findIndex((section) => `#${section.id}` === link.hash));
    }));
    sections.forEach((section) => {
      const stage = section.querySelector(".stage");
      stage.addEventListener("keydown", (event) => {
        const step = { PageDown: 1, PageUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        go(current + step, true);
      });
      stage.addEventListener("wheel", (event) => {
        if (document.activeElement !== stage || event.ctrlKey || section.classList.contains("zoomed")) return;
        event.preventDefault();
        go(current + Math.sign(event.deltaY), true);
      }, { passive: false });
    });
    const named = sections.findIndex((section) => `#${section.id}` === location.hash);
    go(named < 0 ? current : named);
  }
  // Paper cannot unfold anything.
  const folded = [];
  addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((part) => {
    part.open = true;
    folded.push(part);
  }));
  addEventListener("afterprint", () => folded.splice(0).forEach((part) => { part.open = false; }));

  document.documentElement.classList.add("js");
  document.querySelectorAll(".volume").forEach(browse);
  document.querySelectorAll(".case").forEach((section) => { if (!section.closest(".volume")) activate(section); });
  window.lipspline = { activate };
})();
