//! Pages for people, of any server. Their style, their icon and the program that keeps them fresh are
//! files of the same address: a page loads nothing else, and has neither style nor program inside.

use maud::{DOCTYPE, Markup, html};

/// The headers of a page and of its files. The browser loads and asks only this address.
pub const HEADERS: [(&str, &str); 3] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
];

/// A file of a page.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// The file's name below `/page/`.
    pub name: &'static str,
    /// The file's type, for `Content-Type`.
    pub kind: &'static str,
    /// The file's contents.
    pub body: &'static str,
}

/// The files that every page needs. Its server answers them below `/page/`.
pub const FILES: [File; 3] = [
    File {
        name: "page.css",
        kind: "text/css; charset=utf-8",
        body: include_str!("page/page.css"),
    },
    File {
        name: "icon.svg",
        kind: "image/svg+xml",
        body: include_str!("page/icon.svg"),
    },
    File {
        name: "fresh.js",
        kind: "text/javascript; charset=utf-8",
        body: include_str!("page/fresh.js"),
    },
];

/// A page that changes: the browser gets it again every `fresh` seconds. `None` is a page that stays
/// as it is. `back` is where its title leads to.
#[must_use]
pub fn page(title: &str, version: &str, fresh: Option<u32>, back: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="/page/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/page/page.css";
                @if fresh.is_some() { script type="module" src="/page/fresh.js" {} }
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    h1 { (title) }
                    p #about { (version) }
                    nav aria-label="More" { a href=(back) { "Overview" } }
                    @if fresh.is_some() { p #link.link role="status" {} }
                }
                main #main.written data-fresh=[fresh] { (body) }
            }
        }
    };
    page.into_string()
}

/// A part of a page.
#[must_use]
pub fn part(title: &str, body: &Markup) -> Markup {
    html! {
        section.panel aria-label=(title) { h2 { (title) } (body) }
    }
}

/// A table that scrolls sideways on a small screen, also by keyboard.
#[must_use]
pub fn table(about: &str, head: &Markup, rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(about) {
            table {
                caption.unseen { (about) }
                thead { tr { (head) } }
                tbody { (rows) }
            }
        }
    }
}

/// The head of a column of text.
#[must_use]
pub fn head(name: &str) -> Markup {
    html! { th scope="col" { (name) } }
}

/// The head of a column of numbers.
#[must_use]
pub fn head_n(name: &str) -> Markup {
    html! { th.n scope="col" { (name) } }
}

/// The other addresses, each with a word about it.
#[must_use]
pub fn places(places: &[(&str, &str)]) -> Markup {
    let rows = html! {
        @for (path, about) in places {
            tr {
                th scope="row" { a href=(path) { code { (path) } } }
                td { (about) }
            }
        }
    };
    let head = html! { (head("address")) (head("what it has")) };
    part("More", &table("Other addresses", &head, &rows))
}

/// A bar that shows how much of the most is used. The figures are beside it as text.
#[must_use]
pub fn bar(most: f64, used: f64) -> Markup {
    // A browser draws a bar of 0 as full.
    let most = most.max(f64::MIN_POSITIVE);
    html! { meter max=(most) value=(used) aria-hidden="true" {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let body = html! { p title="\"><i>" { "<script>&" } };
        let page = page("<b>", "1", Some(2), "/", &body);
        assert!(page.contains("<title>&lt;b&gt;</title>"), "{page}");
        let body = "<p title=\"&quot;&gt;&lt;i&gt;\">&lt;script&gt;&amp;</p>";
        assert!(page.contains(body), "{page}");
    }
}
