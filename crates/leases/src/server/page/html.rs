//! The page for people.

use std::fmt::Write as _;

use maud::{Markup, html};
use tidegate_limits::Timestamp;
use tidegate_runtime::page::{self, bar, head, head_n, part, table};

use super::PageState;
use super::json::name_of;
use crate::server::{ResourceNow, ServerRole, ServerStatus, Template};

/// The other paths, with a short description.
const PLACES: [(&str, &str); 5] = [
    ("/metrics", "every metric, for Prometheus"),
    ("/v1/leases", "resources, who holds what, mastership"),
    ("/v1/config", "the rules in force"),
    ("/livez", "200 while the process answers"),
    ("/readyz", "200 while the master is known, else 503"),
];

/// Seconds after which the browser loads a page again.
const REFRESH: u32 = 5;

/// All resources, without their leases.
pub(super) fn overview(shown: &PageState, status: &ServerStatus, is_first: bool) -> String {
    whole(&html! {
        (part("Server", &standing(status)))
        (resources(status))
        (other_pages(status, is_first))
        (unmatched(status))
        (rules(shown))
        (part("Settings", &settings(shown)))
        (page::places(&PLACES))
    })
}

/// The page of a resource, with its leases.
pub(super) fn resource(status: &ServerStatus) -> String {
    whole(&html! {
        p { a href="/" { "all resources" } }
        (resources(status))
        @for resource in &status.resources { (leases(status.at, resource)) }
    })
}

fn whole(body: &Markup) -> String {
    let version = env!("CARGO_PKG_VERSION");
    page::page("Tidegate leases", version, Some(REFRESH), "/", body)
}

fn settings(shown: &PageState) -> Markup {
    html! {
        pre.scroll tabindex="0" role="group" aria-label="Settings" {
            @for line in shown.settings.lines() { (visible(line)) "\n" }
        }
    }
}

fn standing(status: &ServerStatus) -> Markup {
    let id = visible(&status.id);
    let counts = &status.counts;
    html! {
        @match &status.standing {
            ServerRole::Master { since } => p.good {
                (id) " is the master, since " (seconds(*since, status.at)) " ago"
            },
            ServerRole::Other { master: Some(master) } => p {
                (id) " is not the master; " (visible(master)) " is"
            },
            ServerRole::Other { master: None } => p.bad {
                (id) " is not the master, and does not know who is"
            },
        }
        p {
            (status.holders) " clients and servers hold something. Since the start: "
            (counts.rejected) " requests refused, " (counts.early)
            " resources asked for too early, " (counts.unrecorded) " claims without a record, "
            (counts.shortfalls) " shortfalls"
            @if counts.shortfalls > 0 { " of up to " (amount(counts.shortfall_max)) }
        }
    }
}

/// The link to the resources that are not on this page.
fn other_pages(status: &ServerStatus, is_first: bool) -> Markup {
    html! {
        @if !is_first { p { a href="/" { "first resources" } } }
        @if let (1.., Some(last)) = (status.resources_left_out, status.resources.last()) {
            p {
                a href={ "/?after=" (in_url(&last.id)) } { "next resources" } ", "
                (status.resources_left_out) " more"
            }
        }
    }
}

fn resources(status: &ServerStatus) -> Markup {
    let columns = html! {
        (head("resource")) (head_n("capacity")) (head_n("lent out")) (head("share lent out"))
        (head_n("wanted")) (head_n("safe")) (head_n("clients")) (head("algorithm")) (head("state"))
    };
    let rows = html! { @for resource in &status.resources { (row(status.at, resource)) } };
    let body = html! {
        @if status.resources.is_empty() {
            p { "No client has asked for a resource here." }
        } @else {
            (table("Resources", &columns, &rows))
            p {
                "Lent out counts each lease until its holder renews it or it ends. So it is more \
                 than wanted for a while after clients ask for less."
            }
        }
    };
    part("Resources", &body)
}

fn row(now: Timestamp, resource: &ResourceNow) -> Markup {
    let (capacity, held) = (resource.capacity.get(), resource.held.get());
    html! {
        tr {
            th scope="row" {
                a href={ "/debug/resources?resource=" (in_url(&resource.id)) } {
                    (visible(&resource.id))
                }
            }
            td.n { (amount(capacity)) } td.n { (amount(held)) } td { (bar(capacity, held)) }
            td.n { (amount(resource.wanted.get())) } td.n { (amount(resource.safe_capacity)) }
            td.n { (resource.clients) } td { (name_of(resource.split)) }
            td {
                @if resource.reserved.get() > 0.0 {
                    (amount(resource.reserved.get())) " set aside, "
                    (resource.reserved_clients) " safe shares in use. "
                }
                @if let Some(until) = resource.learning_until {
                    "learns for " (seconds(now, until)) " more. "
                }
                @if let Some(until) = resource.leased_until {
                    "leased from above for " (seconds(now, until)) ". "
                }
            }
        }
    }
}

fn leases(now: Timestamp, resource: &ResourceNow) -> Markup {
    let shown = resource.leases.len();
    let columns = html! {
        (head("holder")) (head_n("has")) (head_n("wants")) (head_n("clients")) (head("ends in"))
    };
    let rows = html! {
        @for lease in &resource.leases {
            tr {
                th scope="row" { (visible(&lease.holder)) @if lease.server { " (server)" } }
                td.n { (amount(lease.capacity)) } td.n { (amount(lease.wants)) }
                td.n { (lease.clients) } td { (seconds(now, lease.expires)) }
            }
        }
    };
    let body = html! {
        (table("Leases", &columns, &rows))
        (left_out(resource.leases_total.saturating_sub(shown), "leases"))
    };
    part("Leases", &body)
}

fn unmatched(status: &ServerStatus) -> Markup {
    let columns = html! { (head("resource")) (head_n("requests")) };
    let rows = html! {
        @for (id, times) in status.unmatched.iter().rev() {
            tr { th scope="row" { (visible(id)) } td.n { (times) } }
        }
    };
    const TITLE: &str = "Asked for, and no rule matches";
    html! {
        @if !status.unmatched.is_empty() { (part(TITLE, &table(TITLE, &columns, &rows))) }
    }
}

fn rules(shown: &PageState) -> Markup {
    let rules = shown.rules.get();
    let rules = rules.in_order();
    let columns = html! {
        (head("glob")) (head_n("capacity")) (head_n("safe")) (head("algorithm"))
        (head_n("lease")) (head_n("refresh")) (head_n("learning")) (head("about"))
    };
    let total = rules.len();
    let rows = html! {
        @for rule in rules.iter().take(super::SHOWN_MAX) { (row_of_rule(rule)) }
    };
    let body = html! {
        (table("Rules", &columns, &rows))
        (left_out(total.saturating_sub(super::SHOWN_MAX), "rules"))
    };
    part("Rules", &body)
}

fn row_of_rule(rule: &Template) -> Markup {
    let algorithm = &rule.algorithm;
    html! {
        tr {
            th scope="row" { code { (visible(rule.glob.as_str())) } }
            td.n { (amount(rule.capacity.get())) }
            td.n { @if let Some(safe) = rule.safe_capacity { (amount(safe)) } }
            td { (name_of(algorithm.split)) }
            @for span in [algorithm.lease, algorithm.refresh, algorithm.learning] {
                td.n { (span.as_secs()) " s" }
            }
            td { (visible(rule.description.as_deref().unwrap_or_default())) }
        }
    }
}

fn left_out(count: usize, of: &str) -> Markup {
    html! { @if count > 0 { p { "and " (count) " more " (of) } } }
}

/// An amount, with at most three decimals.
fn amount(amount: f64) -> String {
    ((amount * 1e3).round() / 1e3).to_string()
}

/// The time from one moment to another.
fn seconds(from: Timestamp, to: Timestamp) -> String {
    format!("{} s", to.since(from).as_secs())
}

/// Text without control characters, which a browser would swallow, or worse.
fn visible(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Text as a part of an address.
fn in_url(text: &str) -> String {
    let mut url = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                url.push(char::from(byte));
            }
            byte => write!(url, "%{byte:02X}").expect("writing to memory does not fail"),
        }
    }
    url
}
