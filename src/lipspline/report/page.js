// What the page can do: compare two images, zoom and move all of them together, and change the window of grey values.
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
      const value = (share) => (low + share * (high - low)).toPrecision(3);
      field("width-text").value = ((high - low) * width).toPrecision(3);
      field("level-text").value = value(level);
      const plain = width === 1 && level === 0.5;
      const filter = plain ? "" : `url(#${windowFilter(section.id, 1 / width, 0.5 - level / width)})`;
      for (const image of section.querySelectorAll("img.grey")) image.style.filter = filter;
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
        return `${picture.name} ${(low + (data.data[pixel] / 255) * (high - low)).toPrecision(3)}`;
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
    start();
  }

  function windowFilter(id, slope, intercept) {
    const name = `window-${id}`;
    let svg = document.getElementById(`${name}-holder`);
    if (!svg) {
      const parts = ["R", "G", "B"].map((channel) => `<feFunc${channel} type="linear"/>`).join("");
      const filter = `<filter id="${name}" color-interpolation-filters="sRGB"><feComponentTransfer>${parts}`;
      document.body.insertAdjacentHTML("beforeend", `<svg id="${name}-holder" class="holder" aria-hidden="true">${filter}`);
      svg = document.getElementById(`${name}-holder`);
    }
    for (const part of svg.querySelectorAll("feFuncR, feFuncG, feFuncB")) {
      part.setAttribute("slope", slope);
      part.setAttribute("intercept", intercept);
    }
    return name;
  }

  // Paper cannot unfold anything.
  const folded = [];
  addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((part) => {
    part.open = true;
    folded.push(part);
  }));
  addEventListener("afterprint", () => folded.splice(0).forEach((part) => { part.open = false; }));

  document.documentElement.classList.add("js");
  document.querySelectorAll(".case").forEach(activate);
  window.lipspline = { activate };
})();
