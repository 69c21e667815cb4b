"""Modules of the dashboard's page, called in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.web.chromium import LOAD, Open
from tests.web.conftest import link_of


@pytest.fixture(scope="module")
def page(chromium: Any, kernel: Kernel) -> Iterator[Any]:
    page = chromium.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.add_init_script(LOAD)
    page.goto(link_of(kernel))
    yield page
    page.close()


def test_a_value_in_a_template_becomes_text_and_never_an_element(page: Any) -> None:
    shown = page.evaluate(
        """async (hostile) => {
          const { html, render } = await load("core/html.js");
          const box = document.createElement("div");
          render(html`<p title=${hostile} class=${null} .hidden=${false}>${hostile}</p>`, box);
          const { length } = box.querySelectorAll("*");
          return { elements: length, text: box.textContent, title: box.firstElementChild.title };
        }""",
        "<img src=x onerror=alert(1)>",
    )

    assert shown == {"elements": 1, "text": "<img src=x onerror=alert(1)>", "title": "<img src=x onerror=alert(1)>"}


def test_keyed_nodes_stay_when_a_list_is_put_in_another_order(page: Any) -> None:
    kept = page.evaluate(
        """async () => {
          const { html, keyed, render } = await load("core/html.js");
          const box = document.createElement("div");
          const show = (keys) => render(html`<ul>${keys.map((key) => keyed(key, html`<li>${key}</li>`))}</ul>`, box);
          show(["a", "b", "c"]);
          const before = Object.fromEntries([...box.querySelectorAll("li")].map((one) => [one.textContent, one]));
          show(["c", "d", "a"]);
          const after = [...box.querySelectorAll("li")];
          return [after.map((one) => one.textContent), after.map((one) => before[one.textContent] === one)];
        }"""
    )

    assert kept == [["c", "d", "a"], [True, False, True]]


def test_a_child_that_is_none_leaves_nothing_and_comes_back(page: Any) -> None:
    texts = page.evaluate(
        """async () => {
          const { html, render } = await load("core/html.js");
          const box = document.createElement("div");
          const show = (child) => { render(html`<p>[${child}]</p>`, box); return box.textContent; };
          return [show(null), show(html`<b>one</b>`), show(undefined), show([1, html`<i>2</i>`, false, 3]), show("")];
        }"""
    )

    assert texts == ["[]", "[one]", "[]", "[123]", "[]"]


def test_a_listener_is_replaced_and_a_quoted_value_is_refused(page: Any) -> None:
    heard = page.evaluate(
        """async () => {
          const { html, render } = await load("core/html.js");
          const box = document.createElement("div");
          const heard = [];
          const show = (word) => render(html`<button @click=${() => heard.push(word)}>x</button>`, box);
          show("old");
          show("new");
          box.querySelector("button").click();
          try {
            render(html`<p class="${1}"></p>`, document.createElement("div"));
          } catch (error) {
            heard.push(error.message.includes("without quotes"));
          }
          return heard;
        }"""
    )

    assert heard == ["new", True]


def test_an_effect_runs_once_per_frame_and_only_for_what_it_has_read(page: Any) -> None:
    runs = page.evaluate(
        """async () => {
          const { effect, signal } = await load("core/signals.js");
          const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const [one, other, peeked] = [signal(0), signal(0), signal(0)];
          const seen = [];
          const end = effect(() => seen.push([one.get(), one.get() ? other.get() : null, peeked.peek()]));
          other.set(5); peeked.set(7);
          await frame();
          one.set(1); one.set(2);
          await frame();
          other.set(6);
          await frame();
          one.set(2);
          await frame();
          end();
          one.set(3);
          await frame();
          return seen;
        }"""
    )

    assert runs == [[0, None, 0], [2, 5, 7], [2, 6, 7]]


def test_an_effect_that_fails_stops_no_other_one_and_runs_again(page: Any) -> None:
    seen = page.evaluate(
        """async () => {
          const { effect, signal } = await load("core/signals.js");
          const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const value = signal(0);
          const seen = [];
          const ends = [
            effect(() => { if (value.get() === 1) throw new Error("one"); seen.push(`failing ${value.get()}`); }),
            effect(() => seen.push(`other ${value.get()}`)),
          ];
          value.set(1);
          await frame();
          value.set(2);
          await frame();
          ends.forEach((end) => end());
          return seen;
        }"""
    )

    assert seen == ["failing 0", "other 0", "other 1", "failing 2", "other 2"]


@each_row("kind", ["CUSTOM", "TASK_STEP", "custom.x"])
@each_row(
    ("data", "text"),
    [
        ({"name": "kernel", "n": 2}, "name kernel · n 2"),
        ({"name": {"toString": 1}, "delay": {"valueOf": 1}}, 'name {"toString":1} · delay {"valueOf":1}'),
        ({"state": {"toString": 1}, "pid": {"toString": 1}}, 'state {"toString":1} · pid {"toString":1}'),
        ({"resource": "memory", "limit": 1, "used": {"valueOf": 1}}, 'resource memory · limit 1 · used {"valueOf":1}'),
        (["a", None], '["a",null]'),
        ("line", "line"),
        (None, ""),
    ],
)
def test_an_emitted_event_is_shown_by_its_sources_name_whatever_its_data_are(
    page: Any, kind: str, data: object, text: str
) -> None:
    shown = page.evaluate(
        """async (event) => {
          const { describe, eventLine, subject } = await load("parts/text/event.js");
          const { render } = await load("core/html.js");
          render(eventLine(event), document.createElement("div"));
          return [subject(event), describe(event)];
        }""",
        {"type": kind, "data": data, "source_agent_id": 12345, "severity": "info", "at": 1.0},
    )

    assert shown == ["agent 12345", text]


FLEET = [
    {"id": 1, "name": "Indexer", "state": "running", "supervisor": "root", "memory_bytes": 300 << 20, "restarts": 0},
    {
        "id": 2,
        "name": "scraper",
        "state": "backing_off",
        "supervisor": "root/shop",
        "memory_bytes": None,
        "restarts": 4,
    },
    {"id": 3, "name": "worker-1", "state": "failed", "supervisor": "root/shop", "memory_bytes": 1 << 20, "restarts": 3},
]


@each_row(
    ("text", "found"),
    [
        ("", [1, 2, 3]),
        ("index", [1]),
        ("state:failed", [3]),
        ("state:failed,backing", [2, 3]),
        ("memory>100M", [1]),
        ("memory<=1M", [3]),
        ("restarts>=3 -worker", [2]),
        ("-supervisor:shop", [1]),
        ("supervisor:shop restarts=4", [2]),
        ("[", []),
    ],
)
def test_a_filter_finds_what_fulfils_all_its_words(page: Any, text: str, found: list[int]) -> None:
    got = page.evaluate(
        """async ([text, rows]) => {
          const { test, problem } = (await load("parts/text/filter.js")).matcher(text);
          return [rows.filter(test).map((row) => row.id), problem];
        }""",
        [text, FLEET],
    )

    assert got == [found, ""]


@each_row(
    ("text", "problem"),
    [
        ("stat:failed", "no field stat"),
        ("cpu>much", "expected a number"),
        ("x>1", "no number x"),
        ("constructor>1", "no number constructor"),
    ],
)
def test_a_filter_names_its_mistake(page: Any, text: str, problem: str) -> None:
    said = page.evaluate("""async (text) => (await load("parts/text/filter.js")).matcher(text).problem""", text)

    assert problem in said


@each_row(
    ("call", "text"),
    [
        ("bytes(null)", "\u2013"),
        ("bytes(0)", "0B"),
        ("bytes(1023)", "1023B"),
        ("bytes(1536)", "1.5K"),
        ("bytes(141 * 2 ** 20)", "141M"),
        ("number(undefined)", "\u2013"),
        ("number(12345)", "12,345"),
        ("number(0.126, 2)", "0.13"),
        ("duration(0.4)", "<1ms"),
        ("duration(400)", "400ms"),
        ("duration(2100)", "2.1s"),
        ("duration(65000)", "1m 5s"),
        ("duration(3600000)", "1h"),
        ("duration(273600000)", "3d 4h"),
        ("cutMiddle('a-name-of-some-length', 9)", "a-na…ngth"),
        ("cutMiddle('short', 9)", "short"),
        ("visible('a\\nb\\tc\\u202ed\\u001b[31m')", "a↵b c\u2039U+202E\u203ad\u2039U+001B\u203a[31m"),
        ("visibleLines('a\\nb\\u0007')", "a\nb\u2039U+0007\u203a"),
        ("visible('a\\u00ad\\u3164\\u2800b')", "a\u2039U+00AD\u203a\u2039U+3164\u203a\u2039U+2800\u203ab"),
        ("visible('\\ud800 \\u{e0041}\\u{1d159}')", "\u2039U+D800\u203a \u2039U+E0041\u203a\u2039U+1D159\u203a"),
        ("visible('\\u{1f468} \\u2714\\ufe0f \\u05d0')", "\U0001f468 \u2714\ufe0f \u05d0"),
        ("visible(null)", ""),
        ("visible({toString: 1})", '{"toString":1}'),
        ("visibleLines([{toString: 1}, null])", '[{"toString":1},null]'),
        ("plural(1, 'agent')", "1 agent"),
        ("plural(1200, 'agent')", "1,200 agents"),
    ],
)
def test_values_are_written_as_people_read_them(page: Any, call: str, text: str) -> None:
    module = page.evaluate_handle("""load("parts/text/format.js")""")

    assert module.evaluate(f"(module) => module.{call}") == text


@each_row(
    ("line", "parts"),
    [
        ("sleep 100", ["sleep", "100"]),
        ("sh -c 'echo \"a b\"; sleep 1'", ["sh", "-c", 'echo "a b"; sleep 1']),
        ('say "two words" x"y z"', ["say", "two words", "xy z"]),
        ('""', [""]),
        ("  ", []),
    ],
)
def test_a_command_is_split_at_spaces_outside_quotes(page: Any, line: str, parts: list[str]) -> None:
    got = page.evaluate("""async (line) => (await load("parts/forms.js")).splitCommand(line)""", line)

    assert got == parts


def test_colours_of_output_become_classes_and_other_sequences_nothing(page: Any) -> None:
    shown = page.evaluate(
        r"""async () => {
          const { coloured } = await load("parts/text/ansi.js");
          const { html, render } = await load("core/html.js");
          const box = document.createElement("div");
          const text = "a\u001b[1;31mred\u001b[0m\u001b]0;title\u0007b\u001b[2J\u001b[38;5;31mc\u001b[?25ld\u001b";
          render(html`${coloured(text)}`, box);
          const many = "\u001b[31mr\u001b[32mg".repeat(2000); // such lines held up a click for half a minute
          const spans = [...box.querySelectorAll("span")].map((one) => [one.className, one.textContent]);
          return [box.textContent, spans, coloured(many)];
        }"""
    )

    assert shown[0].startswith("aredbcd")
    assert "U+001B" in shown[0]  # one that begins no sequence is shown, as all that can't be seen
    assert shown[1] == [["bad bold", "red"]]
    assert shown[2] == ["rg" * 2000]


def test_the_last_line_of_stderr_is_of_the_last_life(page: Any) -> None:
    found = page.evaluate(
        """async () => {
          const { lastOfStderr } = await load("parts/text/ends.js");
          const end = { stream: "kernel", text: "ended: exit status 1" };
          const error = (text) => ({ stream: "stderr", text });
          const given = { stream: "kernel", text: "given up" };
          return [
            [error("old"), end, error("new"), { stream: "stdout", text: "x" }, error(" "), end, given],
            [error("old"), end, end],
            [error("running")],
            [],
          ].map(lastOfStderr);
        }"""
    )

    assert found == ["new", "", "running", ""]


def test_a_difference_has_what_one_side_has_more_of(page: Any) -> None:
    shown = page.evaluate(
        """async () => {
          const { diff } = await load("parts/text/diff.js");
          const { html, render } = await load("core/html.js");
          const box = document.createElement("div");
          render(html`${diff(["a", "b", "b"], ["b", "<c>"])}`, box);
          return [box.textContent, diff(["a"], ["a"])];
        }"""
    )

    assert shown == ["- a\n- b\n+ <c>\n", None]


def test_changes_of_an_overlay_are_grouped_as_they_are_applied(page: Any) -> None:
    found = page.evaluate(
        """async () => {
          const { countApplied, grouped } = await load("parts/changes.js");
          const change = (path, more = {}) => ({ path, obeyed: null, conflict: null, blocked: null, ...more });
          const of = (root) => ({ obeyed: "git obeys it", root });
          const reply = {
            changes: [
              change("plain"), change("fifo", { ...of("fifo"), blocked: "a FIFO" }),
              change("both", { conflict: "changed" }), change("sub/.git/HEAD", of("sub/.git")),
              change("sub/.git/hooks/x", { ...of("sub/.git/hooks"), conflict: "changed" }),
            ],
            commits: [{ repository: "sub", branch: "main" }, { repository: "", branch: "other" }],
          };
          const paths = (changes) => changes.map((one) => one.path);
          const { plain, conflicts, obeyed, blocked } = grouped(reply);
          const count = (also, resolve) => countApplied(reply, new Set(also), new Map(resolve));
          return {
            groups: [plain, conflicts, blocked].map(paths),
            obeyed: obeyed.map(({ root, why, changes, commits }) =>
              [root, why, paths(changes), commits.map((commit) => commit.branch)]),
            counts: [count([], []), count(["sub/.git", "sub/.git/hooks", "fifo"], [["both", "ours"]]),
              count(["sub/.git/hooks"], [["sub/.git/hooks/x", "ours"], ["both", "theirs"]])],
          };
        }"""
    )

    assert found == {
        "groups": [["plain"], ["both", "sub/.git/hooks/x"], ["fifo"]],
        "obeyed": [
            ["sub/.git", "git obeys it", ["sub/.git/HEAD"], ["main"]],
            ["sub/.git/hooks", "git obeys it", ["sub/.git/hooks/x"], []],
        ],
        "counts": [1, 3, 2],
    }


def test_a_later_diff_says_what_is_another_and_long_texts_are_closed_at_first(page: Any) -> None:
    found = page.evaluate(
        """async () => {
          const { differences, firstOpen } = await load("parts/changes.js");
          const text = (path, lines) => ({ path, diff: "+x\\n".repeat(lines) });
          const before = { changes: [text("same", 1), text("other", 1), text("gone", 1)] };
          const after = { changes: [text("same", 1), text("other", 2), text("new", 1)] };
          const binary = { path: "binary", diff: null };
          const open = firstOpen([text("short", 200), text("long", 101), text("last", 100), binary]);
          return [differences(before, after), differences(before, before), [...open]];
        }"""
    )

    changed = [["other", "is another change now"], ["new", "was not there"], ["gone", "is no change any more"]]
    assert found == [changed, [], ["short", "last"]]


def test_labels_of_a_chart_dont_overlap_and_stay_within_it(page: Any) -> None:
    places = page.evaluate(
        """async () => {
          const { spread } = await load("parts/charts/chart.js");
          const of = (...ys) => spread(ys.map((y) => ({ y })), 12, 80).map((label) => label.y);
          return [of(40, 40), of(80, 79, 78), of(-5, 3), of(20, 70)];
        }"""
    )

    assert places == [[40, 52], [56, 68, 80], [12, 24], [20, 70]]


def test_a_trace_is_zoomed_within_the_time_of_the_agent(page: Any) -> None:
    views = page.evaluate(
        """async () => {
          const { zoomTo, zoomed } = await load("pages/trace.js");
          const all = { name: "a", from: 100, to: 110 };
          return [[102, 104], [95, 97], [108, 113], [90, 120], [105, 105]].map(([from, to]) => {
            zoomTo(all, from, to);
            const { name, from: begin, to: end } = zoomed.peek();
            return [name, begin, Math.round(1000 * (end - begin))];
          });
        }"""
    )

    assert views == [["a", 102, 2000], ["a", 100, 2000], ["a", 105, 5000], ["", 0, 0], ["a", 105, 1]]


def test_a_trend_is_the_last_hour_as_a_multiple_of_an_average_one(page: Any) -> None:
    times = page.evaluate(
        """async () => {
          const { trendOf } = await load("pages/spending.js");
          const of = (spent, hour, hours) => trendOf({ tokens: spent }, { tokens: hour }, 1000, 1000 + 3600 * hours);
          return [of(240, 10, 24), of(240, 40, 24), of(50, 50, 0.5), of(0, 0, 24), of(50, 50, 24)];
        }"""
    )

    assert times == [1, 4, 1, None, None]


def test_of_many_agents_those_that_spend_most_are_shown_until_all_are_wanted(page: Any) -> None:
    show = """async () => {
      const { spenders } = await load("pages/spending.js");
      const { render } = await load("core/html.js");
      const sum = (amount) => ({ tokens: amount, cost: amount / 1e6 });
      const hour = { hour: sum(10), trend: 1, questions: 3, failed: 0, retried: 0 };
      const row = (number) => ({ name: `agent-${number}`, spent: sum(85_388_407 + number), ...hour });
      const box = document.createElement("div");
      render(spenders([...Array(300).keys()].map(row), "USD"), box);
      const rows = [...box.querySelectorAll("tbody tr")];
      const [name, , tokens] = [...rows[0].cells].map((cell) => cell.textContent);
      return [name, tokens, rows.length, box.querySelector(".after button").textContent];
    }"""

    wide = page.evaluate(show)
    page.evaluate("location.hash = '#/model?all=1'")
    page.wait_for_function("async () => (await load('core/route.js')).route.peek().params.all === '1'")
    all_of_them = page.evaluate(show)
    page.evaluate("location.hash = '#/model'")
    page.set_viewport_size({"width": 390, "height": 844})
    narrow = page.evaluate(show)
    page.set_viewport_size({"width": 1280, "height": 800})

    assert wide == ["agent-299", "85,388,706", 12, "the first 200 of 300 agents"]
    assert all_of_them == ["agent-299", "85,388,706", 200, "the first 12"]
    assert narrow[1] == "85.4M"


def test_a_form_to_spawn_sends_only_what_was_written(page: Any) -> None:
    found = page.evaluate(
        """async () => {
          const { problemOf, spawnFields } = await load("parts/forms.js");
          const of = (values) => spawnFields((name) => values[name] ?? "");
          const fields = ["limits.memory", "limits.max_pids", "llm.budget"];
          return [
            of({ name: "a", command: "sleep 9" }),
            of({ name: "b", command: "x.py 1", permissions: "readonly", restart: "transient", max_restarts: "5",
              tokens: "900", per: "1h", memory: "64M", max_pids: "7" }),
            ["limits.max_pids: no", "limits.x: no", "llm.budget[0].tokens: no", "other: no"].map((error) =>
              problemOf({ error }, fields).field),
          ];
        }"""
    )

    assert found[0] == {"name": "a", "command": ["sleep", "9"]}
    assert found[1] == {
        "name": "b",
        "script": "x.py",
        "args": ["1"],
        "permissions": "readonly",
        "restart": "transient",
        "max_restarts": 5,
        "llm": {"budget": [{"tokens": 900, "per": "1h"}]},
        "limits": {"memory": "64M", "max_pids": 7},
    }
    assert found[2] == ["limits.max_pids", "limits.memory", "llm.budget", ""]


def test_a_tree_by_attention_has_what_failed_first_also_below_a_supervisor(page: Any) -> None:
    names = page.evaluate(
        """async () => {
          const { urgentFirst } = await load("pages/tree.js");
          const agent = (name, state) => ({ name, type: "agent", id: name, state });
          const group = (name, ...children) => ({ name, type: "supervisor", children });
          const rows = new Map([["sick", { state: "running", health: "2 checks failed" }]]);
          const children = [
            agent("a", "running"), group("empty"), group("shop", agent("ok", "running"), agent("bad", "failed")),
            agent("b", "running"), agent("sick", "running"), agent("back", "backing_off"),
          ];
          return urgentFirst(children, rows).map((one) => one.name);
        }"""
    )

    assert names == ["shop", "sick", "back", "a", "b", "empty"]


def test_a_tree_by_attention_folds_none_that_needs_it(page: Any) -> None:
    sizes = page.evaluate(
        """async () => {
          const { fold, urgentFirst } = await load("pages/tree.js");
          const state = (n) => n === 7 ? "failed" : n === 9 ? "backing_off" : "waiting";
          const agent = (_, n) => ({ name: `w-${n}`, type: "agent", id: n, state: state(n) });
          const children = Array.from({ length: 40 }, agent), rows = new Map();
          const sizes = (groups) => groups.map((group) => group.length);
          return [sizes(fold(children, null)), sizes(fold(urgentFirst(children, rows), rows))];
        }"""
    )

    assert sizes == [[40], [1, 1, 38]]


def test_a_long_name_is_cut_before_its_end(page: Any) -> None:
    shown = page.evaluate(
        """async () => {
          const { shortName } = await load("parts/state.js");
          const { html, render } = await load("core/html.js");
          const box = document.createElement("div");
          box.style.width = "120px";
          document.body.append(box);
          const of = (name) => { render(html`${shortName(name)}`, box); return box; };
          const long = of("<b>" + "x".repeat(58) + "-017");
          const tail = long.querySelector(".short > :last-child").getBoundingClientRect();
          const within = tail.right <= box.getBoundingClientRect().right && tail.width > 0;
          const found = [long.textContent, within, box.querySelectorAll("b").length, of("short").textContent];
          box.remove();
          return found;
        }"""
    )

    assert shown == ["<b>" + "x" * 58 + "-017", True, 0, "short"]


def test_an_overview_without_agents_says_the_first_step(open_page: Open) -> None:
    page = open_page("overview")

    page.get_by_text("No agent runs yet").wait_for()
    assert page.get_by_text("every agent that should run does").count() == 0
    page.get_by_role("button", name="spawn a first agent").click()
    page.get_by_role("dialog").get_by_label("command").wait_for()
