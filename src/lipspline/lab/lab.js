// The lab: sends what is chosen, shows what is promised, and follows a reconstruction as it runs.
"use strict";
(() => {
  const form = document.getElementById("order");
  const status = document.getElementById("status");
  const at = (id) => document.getElementById(id);
  let shelf = { shipped: [] };
  let running = null;

  function say(text, error = false) {
    status.textContent = text;
    status.classList.toggle("error", error);
  }
  function clear() {
    if (running === null) say("");
  }
  async function ask(path, options = {}) {
    const response = await fetch(path, options);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }
  const send = (path, value) => ask(path, { method: "POST", body: JSON.stringify(value) });
  const attempt = (action) => action().catch((error) => say(error.message, true));

  function order() {
    const value = (name) => form.elements[name].value;
    const kind = value("kind");
    return {
      image: value("image"), kind, acceleration: Number(value("acceleration")), angles: Number(value("angles")),
      noise: Number(value(`noise-${kind}`)), seed: 0, model: value("model"), strength: Number(value("strength")),
      beta: Number(value("beta")), contraction: Number(value("contraction")),
    };
  }
  function choices(select, names, chosen) {
    select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  }
  async function fill(chosen) {
    shelf = await ask("/shelf");
    choices(form.elements.image, shelf.images, chosen ?? shelf.images[0]);
    choices(form.elements.model, shelf.models, form.elements.model.value || shelf.models[0]);
    if (shelf.running !== null && running === null) follow(shelf.running);
  }
  function show() {
    const kind = form.elements.kind.value;
    for (const part of form.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== kind;
    form.querySelector("[data-shipped]").hidden = !shelf.shipped.includes(form.elements.model.value);
    for (const input of form.querySelectorAll("input[type=range]")) {
      input.closest("label").querySelector("output").value = input.value;
    }
  }
  function picture(id, source) {
    at(id).hidden = !source;
    if (source) at(id).src = source;
  }
  const decibel = (quality) => (quality && quality.psnr !== undefined ? `${quality.psnr.toFixed(2)} dB` : "");

  // What is promised changes with the settings; only the answer to the latest question counts.
  // Noise level and β are those that suit the measurement, until somebody chooses them.
  let asked = 0;
  const chosen = new Set();
  let timer = null;
  function preview() {
    show();
    clearTimeout(timer);
    timer = setTimeout(() => attempt(async () => {
      const question = ++asked;
      const answer = await send("/preview", order());
      if (question !== asked) return;
      picture("direct", answer.direct);
      picture("reference", answer.reference);
      at("direct-name").textContent = answer.direct_name;
      at("direct-psnr").textContent = decibel(answer.quality);
      at("summary").textContent = answer.summary;
      at("promise").innerHTML = answer.promise;
      const unsuited = ["strength", "beta"].find(
        (name) => !chosen.has(name) && Number(form.elements[name].value) !== answer.suited[name]);
      if (unsuited) {
        form.elements[unsuited].value = answer.suited[unsuited];
        preview();
      }
    }), 150);
  }

  function follow(job) {
    running = job;
    form.querySelector(".primary").disabled = true;
    form.elements.cancel.disabled = false;
    at("result").hidden = true;
    at("chart").replaceChildren();
    say("Running …");
    const events = new EventSource(`/jobs/${job}/events`);
    const on = (kind, react) => events.addEventListener(kind, (event) => react(JSON.parse(event.data)));
    const end = (text, error = false) => {
      events.close();
      running = null;
      form.querySelector(".primary").disabled = false;
      form.elements.cancel.disabled = true;
      say(text, error);
    };
    on("step", (step) => {
      const left = step.eta === null ? "" : `, about ${Math.ceil(step.eta)} s to go`;
      say(`Step ${step.calls}, change ${step.residual.toExponential(1)}${left}`);
    });
    on("image", (image) => {
      picture("iterate", image.source);
      at("iterate-psnr").textContent = decibel(image.quality);
      at("chart").innerHTML = image.chart;
    });
    on("done", (done) => {
      at("section").innerHTML = done.section;
      lipspline.activate(at("section").querySelector(".case"));
      at("result").hidden = false;
      end("Done. The result, with its certificate, is below.");
    });
    on("failed", (failure) => end(failure.sentence, true));
    on("cancelled", () => end("Cancelled."));
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) end("The lab does not answer any more.", true);
    };
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => follow((await send("/jobs", order())).job));
  });
  form.elements.cancel.addEventListener("click", () => attempt(() => send(`/jobs/${running}/cancel`, {})));
  form.elements.file.addEventListener("change", (event) => attempt(async () => {
    const file = event.target.files[0];
    if (!file) return;
    say(`Reading ${file.name} …`);
    const answer = await ask(`/images?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    await fill(answer.image);
    clear();
    preview();
  }));
  form.addEventListener("input", (event) => {
    chosen.add(event.target.name);
    if (event.target.name === "file") return;
    clear();
    preview();
  });
  attempt(async () => {
    await fill();
    preview();
  });
})();
