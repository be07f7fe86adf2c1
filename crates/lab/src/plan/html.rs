//! A plan as one page without scripts and without anything from elsewhere: the timeline of both
//! configs drawn over each other, and the tables.

use std::time::{Duration, SystemTime};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::compare::Pair;
use super::plans::Plan;
use super::report::PlanReport;
use super::timeline::{Slot, Timeline};
use tidegate_record::digits::Utc;

/// The size of a chart, and the room left and below for its figures.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 56.0;
const BELOW: f64 = 22.0;
/// Rows of one kind in a table.
const ROWS_MAX: usize = 200;

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1c1e21;--back:#fff;--line:#d5d8dc;--old:#8a6d00;--new:#0b57d0}\
@media(prefers-color-scheme:dark){:root{--text:#e6e6e6;--back:#16181b;--line:#3a3f45;--old:#e0b93f;--new:#8ab4f8}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:64rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}\
th,td{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:var(--text)}\
.old{stroke:var(--old);stroke-dasharray:5 3}.new{stroke:var(--new)}.old,.new{fill:none;stroke-width:1.5}\
.grid{stroke:var(--line);stroke-width:1}.key-old{color:var(--old)}.key-new{color:var(--new)}\
pre{white-space:pre-wrap}";

/// A figure of a slot.
type Of<'a> = &'a dyn Fn(&Slot) -> f64;

/// The whole page.
pub(super) fn page(report: &PlanReport<'_>) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none';style-src 'unsafe-inline'";
                title { "Tidegate plan" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Tidegate plan" }
                h2 { "Does the log explain itself?" }
                pre { (report.identity_text()) }
                @for plan in &report.plans { (section(plan)) }
            }
        }
    };
    page.into_string()
}

fn section(plan: &Plan) -> Markup {
    let timeline = &plan.comparison.timeline;
    let width = timeline.width();
    let charts: [(&str, Of<'_>); 5] = [
        ("calls waiting", &|slot| timeline.waiting(slot)),
        ("longest wait, s", &|slot| {
            Duration::from_nanos(slot.longest).as_secs_f64()
        }),
        ("calls at the backend", &|slot| timeline.running(slot)),
        ("sent a second", &|slot| f64::from(slot.sent) / width),
        ("refused a second", &|slot| f64::from(slot.refused) / width),
    ];
    html! {
        h2 { (capital(plan.clients.word())) " clients" }
        p { "Assumed: " (plan.clients.assumption()) "." }
        @let notes = plan.notes();
        @if !notes.is_empty() { ul { @for note in notes { li { (note.trim()) } } } }
        p { b.key-old { "- - before" } " " b.key-new { "— new config" } }
        @for (name, of) in charts { (chart(timeline, name, of)) }
        (rows(plan))
    }
}

/// Both runs, one line each.
fn chart(timeline: &Timeline, name: &str, of: Of<'_>) -> Markup {
    let slots = timeline.slots();
    let figures = slots.iter().flat_map(|(one, other)| [of(one), of(other)]);
    let most = figures.fold(0.0, f64::max);
    let top = rounded_up(most);
    let height = |figure: f64| HEIGHT - figure / top * (HEIGHT - 10.0);
    let path = |pick: fn(&(Slot, Slot)) -> &Slot| {
        #[expect(clippy::cast_precision_loss, reason = "there are a few hundred slots")]
        let step = WIDTH / slots.len().max(1) as f64;
        let mut path = String::new();
        for (nth, pair) in (0_u32..).zip(slots) {
            let x = LEFT + (f64::from(nth) + 0.5) * step;
            let to = if nth == 0 { 'M' } else { 'L' };
            path += &format!("{to}{x:.1} {:.1}", height(of(pick(pair))));
        }
        path
    };
    let quarters = || (0_u32..=4).map(|nth| f64::from(nth) / 4.0);
    let anchors = ["start", "middle", "middle", "middle", "end"];
    let label = format!(
        "{name} over time under both configs, at most {}",
        short(most)
    );
    html! {
        figure {
            figcaption { (name) ", at most " (short(most)) }
            svg viewBox=(format!("0 0 {} {}", LEFT + WIDTH, HEIGHT + BELOW)) role="img" aria-label=(label) {
                @for share in quarters() {
                    @let y = format!("{:.1}", height(share * top));
                    line.grid x1=(LEFT) x2=(LEFT + WIDTH) y1=(y) y2=(y) {}
                    text x=(LEFT - 6.0) y=(y) dy="4" text-anchor="end" { (short(share * top)) }
                }
                @for (share, anchor) in quarters().zip(anchors) {
                    text x=(LEFT + share * WIDTH) y=(HEIGHT + 16.0) text-anchor=(anchor) {
                        (time(timeline, share))
                    }
                }
                path.old d=(path(|pair| &pair.0)) {}
                path.new d=(path(|pair| &pair.1)) {}
            }
        }
    }
}

/// The time at this share of the timeline, in UTC.
fn time(timeline: &Timeline, share: f64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "there are a few hundred slots")]
    let all = timeline.slots().len() as f64 * timeline.width();
    let begin = SystemTime::UNIX_EPOCH + Duration::from_nanos(timeline.begin());
    let text = Utc(begin + Duration::from_secs_f64(share * all)).to_string();
    // The day is in the table of minutes.
    let from = "2026-01-01T".len();
    text[from..from + "00:00:00".len()].to_owned()
}

/// The table: a row for each function, class, caller, limit and minute.
fn rows(plan: &Plan) -> Markup {
    let heads = ["p50 s", "p95 s", "p99 s", "longest s"];
    let waits = |pair: &Pair| {
        let of = [500, 950, 990, 1000].into_iter();
        let both = of.flat_map(|it| [pair.before.wait(it), pair.after.wait(it)]);
        both.map(|wait| format!("{wait:.3}")).collect::<Vec<_>>()
    };
    html! {
        table {
            thead { tr {
                th { } th { "calls" } th { "refused" } th { "new" }
                @for head in heads { th { (head) } th { "new" } }
                th { "now refused" } th { "now answered" }
            } }
            tbody {
                @for (name, pair) in plan.comparison.named(ROWS_MAX) {
                    tr {
                        td { (name) }
                        td { (pair.before.calls) }
                        td { (pair.before.refused) }
                        td { (pair.after.refused) }
                        @for wait in waits(pair) { td { (wait) } }
                        td { (pair.now_refused) }
                        td { (pair.now_answered) }
                    }
                }
            }
        }
    }
}

/// The next figure of one digit, for the top of an axis.
fn rounded_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let unit = 10_f64.powf(most.log10().floor());
    (most / unit).ceil() * unit
}

/// With as many places as are of use.
fn short(figure: f64) -> String {
    match figure {
        figure if figure >= 10.0 || figure == 0.0 => format!("{figure:.0}"),
        figure if figure >= 0.1 => format!("{figure:.2}"),
        figure => format!("{figure:.4}"),
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|it| it.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_figure() {
        for (most, top) in [
            (0.0, 1.0),
            (0.034, 0.04),
            (1.0, 1.0),
            (11.0, 20.0),
            (951.0, 1000.0),
        ] {
            assert!(
                (rounded_up(most) - top).abs() < 1e-9,
                "{most}: {}",
                rounded_up(most)
            );
        }
    }
}
