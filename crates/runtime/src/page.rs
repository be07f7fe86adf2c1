//! Pages for people. A page brings its style with it, loads nothing else and runs nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:light-dark(#d8dee4,#30363d);--soft:light-dark(#59636e,#9198a1);\
--bar:light-dark(#0969da,#4493f8);--bad:light-dark(#cf222e,#ff7b72);--good:light-dark(#1a7f37,#3fb950)}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem;margin:0}h2{font-size:1rem;margin:2rem 0 .5rem}\
p{color:var(--soft);margin:.25rem 0}p.notice{white-space:pre-line}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35rem .75rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}\
td:first-child{overflow-wrap:anywhere}\
th{font-weight:500;color:var(--soft)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
meter{width:8rem;height:.8rem}.good{color:var(--good)}.bad{color:var(--bad)}\
a{color:var(--bar);text-decoration:none}a:hover{text-decoration:underline}\
pre{white-space:pre-wrap;font-size:.85em;border:1px solid var(--line);padding:.75rem;border-radius:.4rem}\
code{font-size:.9em}";

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
