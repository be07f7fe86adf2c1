//! `/`: the same figures for people, in a self-contained page.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{Html, IntoResponse, Response};

use super::routes::Routes;
use super::{LimitKind, LimitState, Opens, QueueState, Source, api};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:light-dark(#d8dee4,#30363d);--soft:light-dark(#59636e,#9198a1);\
--bar:light-dark(#0969da,#4493f8);--full:light-dark(#bc4c00,#f0883e);--bad:light-dark(#cf222e,#ff7b72);\
--good:light-dark(#1a7f37,#3fb950)}\
body{font:15px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem;margin:0}h2{font-size:1rem;margin:2rem 0 .5rem}\
p{color:var(--soft);margin:.25rem 0}p.notice{white-space:pre-line}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35rem .75rem .35rem 0;border-bottom:1px solid var(--line)}\
th{font-weight:500;color:var(--soft)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
meter{width:8rem;height:.8rem}.good{color:var(--good)}.bad{color:var(--bad)}\
a{color:var(--bar);text-decoration:none}a:hover{text-decoration:underline}code{font-size:.9em}";

/// The other paths, with a short description.
const PLACES: [(&str, &str); 14] = [
    ("/metrics", "every metric, for Prometheus"),
    ("/livez", "200 while the process answers"),
    ("/readyz", "200 while calls are taken, else 503 and why"),
    ("/healthz?verbose", "both, with a line for each check"),
    (
        "/v1/limits",
        "each limit and each rate limit's bucket: configured, used, opens when",
    ),
    ("/v1/queue", "waiting calls, how long, for which limit"),
    ("/quotas", "quotas of this sidecar, for people"),
    ("/v1/quotas", "the same, for tools"),
    ("/v1/config", "the effective config, as TOML"),
    (
        "/v1/callers?sort=tokens_1h",
        "callers, the most expensive first",
    ),
    ("/v1/usage", "usage of callers over the last hour"),
    ("/v1/rate-limits", "the rate limits of callers"),
    ("/v1/costs", "costs of calls"),
    ("/v1/openapi.json", "everything, for tools"),
];

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new().get("/", index)
}

async fn index(State(source): State<Arc<dyn Source>>) -> Response {
    let page = api::read(source, |source| {
        let mut page = String::with_capacity(8 << 10);
        write_page(
            &mut page,
            &source.ready(),
            &source.notices(),
            &source.queue(),
            &source.limits(),
        )
        .expect("writing to memory does not fail");
        page
    })
    .await;
    answer(page)
}

/// A page without scripts and external resources, which its headers also state.
pub(super) fn answer(page: String) -> Response {
    let headers: [(HeaderName, &str); 2] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, Html(page)).into_response()
}

/// The beginning of every page.
pub(super) fn write_head(page: &mut String, title: &str) -> fmt::Result {
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"refresh\" content=\"2\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\
         <h1>{title} {}</h1>",
        env!("CARGO_PKG_VERSION")
    )
}

fn write_page(
    page: &mut String,
    ready: &Result<(), String>,
    notices: &[String],
    queue: &QueueState,
    limits: &[LimitState],
) -> fmt::Result {
    write_head(page, "Tidegate")?;
    match ready {
        Ok(()) => write!(page, "<p class=\"good\">takes calls</p>")?,
        Err(reason) => write!(page, "<p class=\"bad\">not ready: {}</p>", Escaped(reason))?,
    }
    for notice in notices {
        write!(page, "<p class=\"bad notice\">{}</p>", Escaped(notice))?;
    }
    write_limits(page, limits)?;
    write_queue(page, queue)?;
    write!(page, "<h2>More</h2><table>")?;
    for (path, about) in PLACES {
        write!(
            page,
            "<tr><td><a href=\"{path}\"><code>{path}</code></a></td><td>{about}</td></tr>"
        )?;
    }
    write!(page, "</table></body></html>")
}

fn write_limits(page: &mut String, limits: &[LimitState]) -> fmt::Result {
    write!(
        page,
        "<h2>Limits</h2><table><tr><th>limit</th><th>calls</th><th>bounds</th>\
         <th class=\"n\">used</th><th class=\"n\">of</th><th></th><th>opens</th></tr>"
    )?;
    for limit in limits {
        let name = Escaped(&limit.name);
        let scope = Escaped(&limit.scope);
        write!(page, "<tr><td>{name}</td><td>{scope}</td><td>")?;
        match (limit.kind, limit.window_seconds) {
            (LimitKind::Outstanding, _) => write!(page, "at once")?,
            (LimitKind::Window, None) => write!(page, "in a window")?,
            (LimitKind::Window, Some(seconds)) => write!(page, "in any {seconds} s")?,
            (LimitKind::Paced, _) => write!(page, "tokens a second")?,
        }
        match (&limit.pace, limit.rate) {
            (Some(pace), Some(rate)) => {
                let (achieved, wait) = (pace.achieved, pace.wait_seconds);
                write!(page, ", {wait:.2} s late")?;
                write_figures(page, &format!("{achieved:.1}"), &rate.to_string())?;
            }
            _ => write_figures(page, &limit.used.to_string(), &limit.configured.to_string())?,
        }
        match limit.opens {
            Opens::Now => write!(page, "now")?,
            Opens::InSeconds(seconds) => write!(page, "in {seconds:.2} s")?,
            Opens::WhenTold => write!(page, "when a call ends")?,
        }
        write!(page, "</td></tr>")?;
    }
    write!(page, "</table>")
}

/// The use of a limit, its size, and a bar.
fn write_figures(page: &mut String, used: &str, of: &str) -> fmt::Result {
    write!(
        page,
        "</td><td class=\"n\">{used}</td><td class=\"n\">{of}</td>\
         <td><meter max=\"{of}\" value=\"{used}\"></meter></td><td>"
    )
}

fn write_queue(page: &mut String, queue: &QueueState) -> fmt::Result {
    write!(
        page,
        "<h2>Queue</h2><p>{} of {} wait, the oldest for {:.1} s; {} at the door</p>",
        queue.depth, queue.capacity, queue.oldest_seconds, queue.door
    )?;
    if queue.functions.is_empty() {
        return Ok(());
    }
    write!(
        page,
        "<table><tr><th>function</th><th class=\"n\">waiting</th><th>for</th></tr>"
    )?;
    for of in &queue.functions {
        write!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            Escaped(&of.function),
            of.waiting,
            Escaped(of.waits_for.as_deref().unwrap_or("its turn"))
        )?;
    }
    write!(page, "</table>")
}

/// Text that cannot become markup.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;"),
                '<' => f.write_str("&lt;"),
                '>' => f.write_str("&gt;"),
                '"' => f.write_str("&quot;"),
                '\'' => f.write_str("&#39;"),
                c => f.write_char(c),
            }?;
        }
        Ok(())
    }
}
