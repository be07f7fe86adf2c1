//! The tables of metrics in the docs.

use std::path::Path;

use tidegate::app::metrics::Metrics;
use tidegate_leases::client::ClientMetrics;
use tidegate_leases::server;
use tidegate_runtime::metric::{Defined, Definition, Registry};

/// Stands before a table of a page, with the module whose metrics it has, and after it.
const BEGIN: &str = "<!-- metrics of ";
const END: &str = "<!-- end -->";

/// `make docs` writes the tables of the docs; otherwise this compares them.
#[test]
fn the_tables_of_the_docs_are_made_from_the_definitions() {
    let lease_client = Registry::default();
    let _ = ClientMetrics::new(&lease_client);
    let check = |page: &str, registry: &Registry| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let written = std::fs::read_to_string(&path).expect("the page is there");
        let made = with_tables(&written, registry.definitions());
        if std::env::var_os("MAKE_DOCS").is_some() {
            std::fs::write(path, made).expect("the page can be written");
        } else {
            assert!(written == made, "{page} is out of date: run `make docs`");
        }
    };
    check("docs/reference/metrics.md", Metrics::new("", "").registry());
    check(
        "docs/how-to/leases.md",
        server::Metrics::default().registry(),
    );
    check("docs/how-to/leases-client.md", &lease_client);
}

/// The page with each of its tables made anew.
fn with_tables(page: &str, mut defined: Vec<Defined>) -> String {
    let mut parts = page.split(BEGIN);
    let mut made = parts.next().expect("split gives one at least").to_owned();
    for part in parts {
        let (module, rest) = part.split_once(" -->").expect("a marker ends");
        let (_, prose) = rest.split_once(END).expect("a table ends");
        made.push_str(&format!("{BEGIN}{module} -->\n{HEAD}"));
        let (of_module, others): (Vec<_>, _) =
            defined.into_iter().partition(|(from, _)| *from == module);
        assert!(!of_module.is_empty(), "no metrics of {module}");
        made.extend(of_module.iter().flat_map(|(_, all)| *all).map(row));
        defined = others;
        made.push_str(END);
        made.push_str(prose);
    }
    assert!(defined.is_empty(), "no table for {defined:#?}");
    made
}

const HEAD: &str = "\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n";

fn row(metric: &Definition) -> String {
    let Definition {
        name, kind, unit, ..
    } = metric;
    let labels: Vec<_> = metric.labels.iter().map(|it| format!("`{it}`")).collect();
    let labels = labels.join(", ");
    let help = metric.help.trim();
    format!("| `{name}` | {kind} | {labels} | {unit} | {help} |\n")
}
