//! Pages for people. A page brings its style with it, loads nothing else and runs nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The colours are those of the page of a sidecar, `src/admin/page/page.css`.
const STYLE: &str = "\
:root{color-scheme:light dark;--ground:light-dark(#f4f6f8,#0e1216);--panel:light-dark(#fff,#161b21);\
--ink:light-dark(#16202a,#e3e8ee);--soft:light-dark(#55616e,#9aa6b3);--line:light-dark(#d9dfe5,#2b333c);\
--faint:light-dark(#eceff2,#212830);--blue:light-dark(#0b5cad,#6ab0f3);--bad:light-dark(#b3261e,#ff8a80);\
--good:light-dark(#17713a,#4fc27a)}\
html{font:14px/1.45 system-ui,sans-serif;background:var(--ground);color:var(--ink)}\
body{margin:0 auto;max-width:100rem;padding:1rem clamp(.75rem,2vw,2rem) 3rem}\
h1{font-size:1.15rem;margin:0 0 .5rem}h2{font-size:.95rem;margin:1.75rem 0 .4rem}\
p{color:var(--soft);margin:.25rem 0}p.notice{white-space:pre-line}\
table{border-collapse:collapse;width:100%;background:var(--panel);border:1px solid var(--line)}\
th,td{text-align:left;padding:.32rem .75rem;border-bottom:1px solid var(--faint);vertical-align:top;\
font-variant-numeric:tabular-nums}\
td:first-child{overflow-wrap:anywhere}\
th{font-weight:500;color:var(--soft);border-bottom-color:var(--line)}td.n,th.n{text-align:right}\
meter{width:8rem;height:.8rem}.good{color:var(--good)}.bad{color:var(--bad)}\
a{color:var(--blue);text-underline-offset:.2em}:focus-visible{outline:2px solid var(--blue)}\
pre{white-space:pre-wrap;font-size:.92em;background:var(--panel);border:1px solid var(--line);\
padding:.75rem;border-radius:.4rem}\
code{font:.92em ui-monospace,monospace}";

/// The headers of a page. They tell the browser to load nothing and to run nothing.
pub const HEADERS: [(&str, &str); 2] = [
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
];

/// A page. The browser loads it again every `refresh` seconds.
#[must_use]
pub fn page(title: &str, version: &str, refresh: u32, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(refresh);
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) " " (version) }
                (body)
            }
        }
    };
    page.into_string()
}

/// The other addresses, each with a word about it.
#[must_use]
pub fn places(places: &[(&str, &str)]) -> Markup {
    html! {
        h2 { "More" }
        table {
            @for (path, about) in places {
                tr {
                    td { a href=(path) { code { (path) } } }
                    td { (about) }
                }
            }
        }
    }
}

/// A bar that shows how much of the most is used.
#[must_use]
pub fn bar(most: f64, used: f64) -> Markup {
    // A browser draws a bar of 0 as full.
    let most = most.max(f64::MIN_POSITIVE);
    html! { meter max=(most) value=(used) {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let body = html! { p title="\"><i>" { "<script>&" } };
        let page = page("<b>", "1", 2, &body);
        assert!(page.contains("<title>&lt;b&gt;</title>"), "{page}");
        let body = "<p title=\"&quot;&gt;&lt;i&gt;\">&lt;script&gt;&amp;</p>";
        assert!(page.contains(body), "{page}");
    }
}
