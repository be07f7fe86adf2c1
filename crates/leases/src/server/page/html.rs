//! The page for people. It is self-contained.

use std::fmt::{self, Display, Write};

use tidegate_limits::Timestamp;

use super::Shown;
use super::json::name_of;
use crate::server::{ResourceNow, Standing, Status, Template};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:light-dark(#d8dee4,#30363d);--soft:light-dark(#59636e,#9198a1);\
--bar:light-dark(#0969da,#4493f8);--bad:light-dark(#cf222e,#ff7b72);--good:light-dark(#1a7f37,#3fb950)}\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem;margin:0}h2{font-size:1rem;margin:2rem 0 .5rem}\
p{color:var(--soft);margin:.25rem 0}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35rem .75rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}\
td:first-child{overflow-wrap:anywhere}\
th{font-weight:500;color:var(--soft)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
meter{width:8rem;height:.8rem}.good{color:var(--good)}.bad{color:var(--bad)}\
a{color:var(--bar);text-decoration:none}a:hover{text-decoration:underline}\
pre{white-space:pre-wrap;font-size:.85em;border:1px solid var(--line);padding:.75rem;border-radius:.4rem}\
code{font-size:.9em}";

/// The other paths, with a short description.
const PLACES: [(&str, &str); 5] = [
    ("/metrics", "every metric, for Prometheus"),
    ("/v1/leases", "resources, who holds what, mastership"),
    ("/v1/config", "the rules in force"),
    ("/livez", "200 while the process answers"),
    ("/readyz", "200 while the master is known, else 503"),
];

/// All resources, without their leases.
pub(super) fn overview(shown: &Shown, status: &Status, is_first: bool) -> String {
    let mut page = Page::begin("Tidegate leases");
    page.standing(status);
    page.resources(status);
    page.other_pages(status, is_first);
    page.unmatched(status);
    page.rules(shown);
    page.add(format_args!(
        "<h2>Settings</h2><pre>{}</pre><h2>More</h2><table>",
        Lines(&shown.settings)
    ));
    for (path, about) in PLACES {
        page.add(format_args!(
            "<tr><td><a href=\"{path}\"><code>{path}</code></a></td><td>{about}</td></tr>"
        ));
    }
    page.add(format_args!("</table>"));
    page.end()
}

/// One resource, with its leases.
pub(super) fn resource(status: &Status) -> String {
    let mut page = Page::begin("Tidegate leases");
    page.add(format_args!("<p><a href=\"/\">all resources</a></p>"));
    page.resources(status);
    for resource in &status.resources {
        page.leases(status.at, resource);
    }
    page.end()
}

struct Page(String);

impl Page {
    fn begin(title: &str) -> Self {
        let mut page = Self(String::with_capacity(16 << 10));
        page.add(format_args!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"refresh\" content=\"5\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>{title}</title><style>{STYLE}</style></head><body><h1>{title} {}</h1>",
            env!("CARGO_PKG_VERSION")
        ));
        page
    }

    fn end(mut self) -> String {
        self.0.push_str("</body></html>\n");
        self.0
    }

    fn add(&mut self, text: fmt::Arguments<'_>) {
        self.0
            .write_fmt(text)
            .expect("writing to memory does not fail");
    }

    fn standing(&mut self, status: &Status) {
        let id = Escaped(&status.id);
        match &status.standing {
            Standing::Master { since } => self.add(format_args!(
                "<p class=\"good\">{id} is the master, since {}</p>",
                Ago(status.at, *since)
            )),
            Standing::Other {
                master: Some(master),
            } => self.add(format_args!(
                "<p>{id} is not the master; {} is</p>",
                Escaped(master)
            )),
            Standing::Other { master: None } => self.add(format_args!(
                "<p class=\"bad\">{id} is not the master, and does not know who is</p>"
            )),
        }
        let counts = &status.counts;
        self.add(format_args!(
            "<p>{} clients and servers hold something. Since the start: {} requests refused, \
             {} resources asked for too early, {} claims without a record, {} shortfalls",
            status.holders, counts.rejected, counts.early, counts.unrecorded, counts.shortfalls
        ));
        if counts.shortfalls > 0 {
            self.add(format_args!(" of up to {}", Amount(counts.shortfall_max)));
        }
        self.add(format_args!("</p>"));
    }

    /// The link to the resources that are not on this page.
    fn other_pages(&mut self, status: &Status, is_first: bool) {
        if !is_first {
            self.add(format_args!("<p><a href=\"/\">first resources</a></p>"));
        }
        if let (1.., Some(last)) = (status.resources_left_out, status.resources.last()) {
            self.add(format_args!(
                "<p><a href=\"/?after={}\">next resources</a>, {} more</p>",
                InUrl(&last.id),
                status.resources_left_out
            ));
        }
    }

    fn resources(&mut self, status: &Status) {
        self.add(format_args!(
            "<h2>Resources</h2><table><tr><th>resource</th><th class=\"n\">capacity</th>\
             <th class=\"n\">lent out</th><th></th><th class=\"n\">wanted</th>\
             <th class=\"n\">safe</th><th class=\"n\">clients</th><th>algorithm</th>\
             <th>state</th></tr>"
        ));
        for resource in &status.resources {
            self.resource(status.at, resource);
        }
        self.add(format_args!("</table>"));
        if status.resources.is_empty() {
            self.add(format_args!(
                "<p>no client has asked for a resource here</p>"
            ));
        } else {
            self.add(format_args!(
                "<p>Lent out counts each lease until its holder renews it or it ends. So it is more \
                 than wanted for a while after clients ask for less.</p>"
            ));
        }
    }

    fn resource(&mut self, now: Timestamp, resource: &ResourceNow) {
        let (capacity, held) = (resource.capacity.get(), resource.held.get());
        self.add(format_args!(
            "<tr><td><a href=\"/debug/resources?resource={}\">{}</a></td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td><meter max=\"{}\" value=\"{held}\"></meter></td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td>",
            InUrl(&resource.id),
            Escaped(&resource.id),
            Amount(capacity),
            Amount(held),
            // The bar of an empty capacity is full.
            capacity.max(f64::MIN_POSITIVE),
            Amount(resource.wanted.get()),
            Amount(resource.safe_capacity),
            resource.clients,
            name_of(resource.split),
        ));
        if resource.reserved.get() > 0.0 {
            self.add(format_args!(
                "{} set aside, {} safe shares in use. ",
                Amount(resource.reserved.get()),
                resource.reserved_clients
            ));
        }
        if let Some(until) = resource.learning_until {
            self.add(format_args!("learns for {} more. ", In(now, until)));
        }
        if let Some(until) = resource.leased_until {
            self.add(format_args!("leased from above for {}. ", In(now, until)));
        }
        self.add(format_args!("</td></tr>"));
    }

    fn leases(&mut self, now: Timestamp, resource: &ResourceNow) {
        self.add(format_args!(
            "<h2>Leases</h2><table><tr><th>holder</th><th class=\"n\">has</th>\
             <th class=\"n\">wants</th><th class=\"n\">clients</th><th>ends in</th></tr>"
        ));
        for lease in &resource.leases {
            self.add(format_args!(
                "<tr><td>{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td>{}</td></tr>",
                Escaped(&lease.holder),
                if lease.server { " (server)" } else { "" },
                Amount(lease.capacity),
                Amount(lease.wants),
                lease.clients,
                In(now, lease.expires),
            ));
        }
        self.add(format_args!("</table>"));
        let shown = resource.leases.len();
        self.left_out(resource.leases_total.saturating_sub(shown), "leases");
    }

    fn unmatched(&mut self, status: &Status) {
        if status.unmatched.is_empty() {
            return;
        }
        self.add(format_args!(
            "<h2>Asked for, and no rule matches</h2><table><tr><th>resource</th>\
             <th class=\"n\">requests</th></tr>"
        ));
        for (id, times) in status.unmatched.iter().rev() {
            self.add(format_args!(
                "<tr><td>{}</td><td class=\"n\">{times}</td></tr>",
                Escaped(id)
            ));
        }
        self.add(format_args!("</table>"));
    }

    fn rules(&mut self, shown: &Shown) {
        self.add(format_args!(
            "<h2>Rules</h2><table><tr><th>glob</th><th class=\"n\">capacity</th>\
             <th class=\"n\">safe</th><th>algorithm</th><th class=\"n\">lease</th>\
             <th class=\"n\">refresh</th><th class=\"n\">learning</th><th>about</th></tr>"
        ));
        let rules = shown.rules.get();
        for rule in rules.in_order().iter().take(super::SHOWN_MAX) {
            self.rule(rule);
        }
        self.add(format_args!("</table>"));
        let left_out = rules.in_order().len().saturating_sub(super::SHOWN_MAX);
        self.left_out(left_out, "rules");
    }

    fn rule(&mut self, rule: &Template) {
        let algorithm = &rule.algorithm;
        self.add(format_args!(
            "<tr><td><code>{}</code></td><td class=\"n\">{}</td><td class=\"n\">",
            Escaped(rule.glob.as_str()),
            Amount(rule.capacity.get()),
        ));
        if let Some(safe) = rule.safe_capacity {
            self.add(format_args!("{}", Amount(safe)));
        }
        self.add(format_args!(
            "</td><td>{}</td><td class=\"n\">{} s</td><td class=\"n\">{} s</td>\
             <td class=\"n\">{} s</td><td>{}</td></tr>",
            name_of(algorithm.split),
            algorithm.lease.as_secs(),
            algorithm.refresh.as_secs(),
            algorithm.learning.as_secs(),
            Escaped(rule.description.as_deref().unwrap_or_default()),
        ));
    }

    fn left_out(&mut self, count: usize, of: &str) {
        if count > 0 {
            self.add(format_args!("<p>and {count} more {of}</p>"));
        }
    }
}

/// An amount, with at most three decimals.
struct Amount(f64);

impl Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 1e3).round() / 1e3;
        write!(f, "{rounded}")
    }
}

/// The time since a moment.
struct Ago(Timestamp, Timestamp);

impl Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s ago", self.0.since(self.1).as_secs())
    }
}

/// The time until a moment.
struct In(Timestamp, Timestamp);

impl Display for In {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.1.since(self.0).as_secs())
    }
}

/// Text that cannot become markup.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;"),
                '<' => f.write_str("&lt;"),
                '>' => f.write_str("&gt;"),
                '"' => f.write_str("&quot;"),
                '\'' => f.write_str("&#39;"),
                // A control character, shown in escaped form.
                c if c.is_control() => write!(f, "\u{fffd}"),
                c => f.write_char(c),
            }?;
        }
        Ok(())
    }
}

/// The same for several lines, which stay separate.
struct Lines<'a>(&'a str);

impl Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .lines()
            .try_for_each(|line| writeln!(f, "{}", Escaped(line)))
    }
}

/// Text as a part of an address.
struct InUrl<'a>(&'a str);

impl Display for InUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    f.write_char(char::from(byte))?;
                }
                byte => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}
