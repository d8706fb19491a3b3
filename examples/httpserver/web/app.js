"use strict";

const $ = (id) => document.getElementById(id);

// All text comes in by textContent, so nothing in it can become markup.
function make(tag, className, text) {
	const e = document.createElement(tag);
	if (className) e.className = className;
	if (text !== undefined) e.textContent = text;
	return e;
}

// "1m0s" reads better as "minute".
const words = { "1s": "second", "1m0s": "minute", "1h0m0s": "hour", "24h0m0s": "day" };
const per = (units, window) => `${units} per ` + (words[window] || window.replace(/(\D)0s$/, "$1").replace(/(\D)0m$/, "$1"));

function wait(ms) {
	if (ms === 0) return "nothing used";
	const s = Math.ceil(ms / 1000);
	const text = s < 100 ? `${s} s` : s < 6000 ? `${Math.ceil(s / 60)} min` : `${Math.ceil(s / 3600)} h`;
	return `all there again in ${text}`;
}

// The bars are made anew only when the limits change, so that their width can glide.
let shown = "";

function makeLimits(st) {
	const names = JSON.stringify([st.policy, st.limits.map((l) => [l.units, l.window])]);
	if (names === shown) return;
	shown = names;
	$("limits").replaceChildren(...st.limits.map((l) => {
		const item = make("li", "limit"), label = make("div", "label"), bar = make("div", "bar");
		label.append(make("span", "", per(l.units, l.window)), make("span", "left"));
		bar.setAttribute("role", "meter");
		bar.setAttribute("aria-label", `left of ${per(l.units, l.window)}`);
		bar.setAttribute("aria-valuemin", "0");
		bar.setAttribute("aria-valuemax", String(l.units));
		bar.append(make("div", "fill"));
		item.append(label, bar, make("p", "note"));
		return item;
	}));
}

function showLimits(st) {
	makeLimits(st);
	st.limits.forEach((l, i) => {
		const item = $("limits").children[i], part = l.units ? Math.min(1, l.remaining / l.units) : 0;
		item.dataset.level = l.remaining === 0 ? "out" : part <= 0.25 ? "low" : "good";
		item.querySelector(".left").textContent = l.remaining === 0 ? "used up" : `${l.remaining} left`;
		item.querySelector(".fill").style.width = `${100 * part}%`;
		item.querySelector(".note").textContent = wait(l.resetMs);
		item.querySelector(".bar").setAttribute("aria-valuenow", String(l.remaining));
	});
}

// A screen reader is told of new rows only, so known ones stay in place.
function showRefusals(list) {
	const body = $("refusals"), key = (r) => JSON.stringify(r);
	const keys = new Set(list.map(key));
	for (const row of [...body.rows]) if (!keys.has(row.dataset.key)) row.remove();
	const known = new Set([...body.rows].map((row) => row.dataset.key));
	for (const r of [...list].reverse()) {
		if (known.has(key(r))) continue;
		const row = make("tr");
		row.dataset.key = key(r);
		row.append(make("td", "", new Date(r.time).toLocaleTimeString()), make("td", "", r.policy), make("td", "", per(r.units, r.window)), make("td"));
		row.lastChild.append(make("code", "", r.path));
		body.prepend(row);
	}
	$("none").hidden = list.length > 0;
}

function show(st) {
	$("who").textContent = st.client ? `${st.client}, plan ${st.policy}` : "sign-ins of your address that may fail";
	$("login").hidden = Boolean(st.client);
	$("actions").hidden = !st.client;
	$("degraded").hidden = !st.degraded;
	showLimits(st);
	showRefusals(st.refusals);
}

function connection(state, text) {
	const badge = $("connection");
	if (badge.dataset.state === state) return;
	badge.dataset.state = state;
	badge.textContent = text;
}

let stream;

// A stream is one visitor's: after signing in or out there's a new one. EventSource connects again by
// itself when it's cut off, but gives up when it's refused.
function connect() {
	if (stream) stream.close();
	stream = new EventSource("/live");
	stream.onmessage = (e) => { connection("live", "live"); show(JSON.parse(e.data)); };
	stream.onerror = () => {
		connection("lost", "connection lost");
		if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
	};
}

function answer(ok, text) {
	$("answer").dataset.status = ok ? "ok" : "bad";
	$("answer").textContent = text;
}

async function ask(path, options) {
	try {
		const resp = await fetch(path, options);
		const body = resp.status === 204 ? {} : await resp.json();
		const later = resp.headers.get("Retry-After");
		if (!resp.ok) answer(false, `${resp.status} ${body.detail || body.title}${later ? ` Try again in ${later} s.` : ""}`);
		return resp.ok ? body : null;
	} catch {
		answer(false, "No answer.");
		return null;
	}
}

$("login").addEventListener("submit", async (e) => {
	e.preventDefault();
	const body = await ask("/api/login", { method: "POST", body: new URLSearchParams(new FormData(e.target)) });
	if (!body) return;
	answer(true, `Signed in as ${body.client}, plan ${body.plan}.`);
	connect();
});

$("logout").addEventListener("click", async () => {
	if (!await ask("/api/logout", { method: "POST" })) return;
	answer(true, "Signed out.");
	connect();
});

for (const button of document.querySelectorAll("[data-get]")) {
	button.addEventListener("click", async () => {
		const body = await ask(button.dataset.get);
		if (body) answer(true, body.quote || `${body.quotes.length} quotes found: ${body.quotes[0]}`);
	});
}

connect();
