//! The module levels hold. Which module imports which is read from the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules by level, as ARCHITECTURE.md draws them. A module may use what stands below it,
/// never what stands beside or above.
pub(crate) const LEVELS: [(u8, &[&str]); 8] = [
    (7, &["main"]),
    (6, &["cli"]),
    (5, &["tools"]),
    (4, &["app"]),
    (3, &["config", "pipeline"]),
    (
        2,
        &[
            "listen", "protocol", "classify", "callers", "coalesce", "admit", "forward", "tasks",
            "admin", "series", "state",
        ],
    ),
    (1, &["call", "telemetry"]),
    (0, &["options"]),
];

fn level_of(module: &str) -> u8 {
    LEVELS
        .iter()
        .find(|(_, modules)| modules.contains(&module))
        .unwrap_or_else(|| panic!("module {module} has no place in the floor plan"))
        .0
}

/// The top-level modules that a source names after `crate::`.
fn imports(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` and `some_crate::` are something else.
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || "_$".contains(before)) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let end = closing(group);
            for part in top_level_parts(&group[..end]) {
                found.push(name(part.trim()));
            }
        } else {
            found.push(name(rest));
        }
    }
    found
}

fn name(path: &str) -> String {
    path.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn closing(group: &str) -> usize {
    let mut depth = 1;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    group.len()
}

fn top_level_parts(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src can be read") {
        let path = entry.expect("src can be read").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The violations in one file, one line each.
fn violations(module: &str, source: &str) -> Vec<String> {
    imports(source)
        .into_iter()
        .filter(|import| import != module)
        .filter(|import| level_of(import) >= level_of(module))
        .map(|import| format!("{module} uses {import}"))
        .collect()
}

#[test]
fn no_module_imports_sideways_or_upward() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = BTreeMap::new();
    for file in files {
        let relative = file.strip_prefix(&src).expect("it stands under src");
        let first = relative.iter().next().expect("a file has a name");
        let module = first.to_string_lossy().trim_end_matches(".rs").to_owned();
        if module == "lib" {
            continue;
        }
        let source = fs::read_to_string(&file).expect("a source is text");
        let found = violations(&module, &source);
        if !found.is_empty() {
            wrong.insert(relative.display().to_string(), found);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Files of the app that name the z/VM SDK server or its words.
#[test]
fn zvm_is_named_only_where_it_is_plugged_in_and_where_users_write_or_read_its_names() {
    let may_name = [
        "call/sdk.rs",
        // Keys of the config, and a field of the access log.
        "config/",
        "app/access.rs",
        // What options and functions are called, and their texts for users.
        "config.rs",
        "admit/options.rs",
        "classify/options.rs",
        "coalesce.rs",
        "forward/options.rs",
        "protocol.rs",
        "protocol/forwarded_options.rs",
        "tasks.rs",
        // Tests of answers, and commands about the real server.
        "coalesce/answer.rs",
        "tools/",
        "cli.rs",
    ];
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        let relative = file.strip_prefix(&src).expect("it is below src");
        let relative = relative.to_string_lossy();
        if may_name.iter().any(|place| relative.starts_with(place)) {
            continue;
        }
        let source = fs::read_to_string(&file).expect("a source is text");
        let source = source.to_lowercase();
        for word in ["zvm", "z/vm", "smapi", "overallrc"] {
            assert!(!source.contains(word), "{relative} names {word}");
        }
    }
}

#[test]
fn a_sideways_or_upward_import_is_found_in_every_form() {
    let check = |module: &str, source: &str, found: &[&str]| {
        assert_eq!(violations(module, source), found, "{source}");
    };
    check("admit", "use crate::call::Record;", &[]);
    check(
        "admit",
        "use crate::forward::Forwarder;",
        &["admit uses forward"],
    );
    check(
        "forward",
        "use crate::{call::{Slot, Reply}, admit::{Gate}};",
        &["forward uses admit"],
    );
    check(
        "call",
        "fn f() { crate::telemetry::log::finish() }",
        &["call uses telemetry"],
    );
    check("listen", "use crate::config;", &["listen uses config"]);
    check("pipeline", "use crate::app::App;", &["pipeline uses app"]);
    check("admit", "// use crate::forward::Forwarder;", &[]);
    check("admit", "use crate::admit::Gate;", &[]);
}

#[test]
fn the_decision_core_depends_on_nothing() {
    let manifest = manifest("crates/limits");
    // What library users may add to it is behind features, and none of them is there by default.
    let optional = |rule: &toml::Value| rule.get("optional") == Some(&toml::Value::Boolean(true));
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    assert!(dependencies.is_none_or(|rules| rules.values().all(optional)));
    let feature = |name: &str| manifest["features"][name].to_string();
    assert_eq!(
        (feature("default"), feature("std")),
        ("[\"std\"]".into(), "[]".into())
    );
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/limits/src/lib.rs");
    let lib = fs::read_to_string(lib).expect("the core has a root");
    assert!(lib.contains("#![no_std]") && lib.contains("#![forbid(unsafe_code)]"));
    // `make check` compiles it without the modules that need a clock, a lock and a thread.
    for behind_std in ["extern crate std;", "pub mod clock;", "pub mod keyed;"] {
        assert!(lib.contains(&format!("#[cfg(feature = \"std\")]\n{behind_std}")));
    }
}

#[test]
fn the_table_of_callers_depends_only_on_the_decision_core() {
    let manifest = manifest("crates/callers");
    let dependencies = manifest["dependencies"].as_table().expect("a table");
    assert_eq!(dependencies.keys().collect::<Vec<_>>(), ["tidegate-limits"]);
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/callers/src/lib.rs");
    let lib = fs::read_to_string(lib).expect("the crate has a root");
    assert!(lib.contains("#![no_std]") && lib.contains("#![forbid(unsafe_code)]"));
}

fn manifest(package: &str) -> toml::Table {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(package)
        .join("Cargo.toml");
    let manifest = fs::read_to_string(file).expect("a crate has a manifest");
    manifest.parse().expect("a manifest is TOML")
}

/// Our own crates that one of them depends on, tests aside.
fn own_dependencies(folder: &str) -> Vec<String> {
    let manifest = manifest(folder);
    let rules = manifest["dependencies"].as_table().expect("a table");
    let own = rules.keys().filter(|name| name.starts_with("tidegate"));
    own.cloned().collect()
}

#[test]
fn crates_depend_only_on_those_below_them() {
    let check = |folder: &str, expected: &[&str]| {
        assert_eq!(own_dependencies(folder), expected, "{folder}");
    };
    check("crates/runtime", &["tidegate-limits"]);
    check("crates/leases", &["tidegate-limits", "tidegate-runtime"]);
    check(
        "crates/quota",
        &[
            "tidegate-ledger",
            "tidegate-limits",
            "tidegate-mapping",
            "tidegate-runtime",
        ],
    );
    check("crates/replay", &["tidegate-limits"]);
    check("crates/handover", &[]);
    check("crates/message", &[]);
}

/// The place of a module: the names from its crate's root down to it.
type Place = Vec<String>;

/// The imports of each module of a crate from the same crate, by its `use` lines. Tests do not count.
fn graph(src: &Path) -> BTreeMap<Place, BTreeSet<Place>> {
    let mut files = Vec::new();
    sources(src, &mut files);
    let modules: BTreeMap<Place, PathBuf> = files
        .into_iter()
        .map(|file| {
            let relative = file.strip_prefix(src).expect("it stands under src");
            let names = relative.with_extension("");
            let names = names.iter().map(|name| name.to_string_lossy().into_owned());
            (names.collect(), file)
        })
        .collect();
    let source = |file| fs::read_to_string(file).expect("a source is text");
    let places = modules.iter().map(|(place, file)| {
        let found = used(&source(file), place, &modules);
        (place.clone(), found)
    });
    places.collect()
}

/// The modules that a source imports.
fn used<T>(source: &str, place: &Place, modules: &BTreeMap<Place, T>) -> BTreeSet<Place> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or(source);
    let code: Vec<&str> = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("use ") {
        if code[..at].ends_with(['\n', ' ']) || at == 0 {
            let end = code[at..].find(';').unwrap_or(code.len() - at);
            expand("", &code[at + "use ".len()..at + end], &mut paths);
        }
    }
    let absolute = |path: String| -> Option<Place> {
        let names: Vec<&str> = path.split("::").map(str::trim).collect();
        let child = || [place.as_slice(), &[names[0].to_owned()]].concat();
        let mut base = match names[0] {
            "crate" => Vec::new(),
            "self" | "super" => place.clone(),
            _ if modules.contains_key(&child()) => child(),
            _ => return None,
        };
        for name in &names {
            match *name {
                "crate" | "self" => {}
                "super" => drop(base.pop()),
                name if base.last().is_some_and(|it| it == name) && base == child() => {}
                name => base.push(name.to_owned()),
            }
        }
        while !base.is_empty() && !modules.contains_key(&base) {
            base.pop();
        }
        (!base.is_empty()).then_some(base)
    };
    paths.into_iter().filter_map(absolute).collect()
}

/// Every path of a `use`, one for each name in its groups.
fn expand(before: &str, path: &str, into: &mut Vec<String>) {
    match path.split_once('{') {
        Some((base, group)) => {
            for part in top_level_parts(&group[..closing(group)]) {
                expand(&format!("{before}{}", base.trim()), part, into);
            }
        }
        None => into.push(format!("{before}{}", path.trim())),
    }
}

/// Of each folder, the files that import each other in a circle, be it through files below them.
fn circles(graph: &BTreeMap<Place, BTreeSet<Place>>) -> BTreeMap<String, BTreeSet<String>> {
    let mut folders: BTreeMap<Place, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, found) in graph {
        for to in found {
            let both = from.iter().zip(to);
            let shared = both.take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(shared), to.get(shared)) {
                let edges = folders.entry(from[..shared].to_vec()).or_default();
                edges.insert((a.clone(), b.clone()));
            }
        }
    }
    let mut found = BTreeMap::new();
    for (folder, mut edges) in folders {
        // Direct and indirect imports; then a file in a circle imports itself.
        loop {
            let onward: Vec<_> = edges
                .iter()
                .flat_map(|(a, b)| edges.iter().map(move |(from, to)| (a, b, from, to)))
                .filter(|(_, b, from, _)| b == from)
                .map(|(a, _, _, to)| (a.clone(), to.clone()))
                .collect();
            let before = edges.len();
            edges.extend(onward);
            if edges.len() == before {
                break;
            }
        }
        edges.retain(|(from, to)| from == to);
        if !edges.is_empty() && !folder.is_empty() {
            let files = edges.into_iter().map(|(from, _)| from).collect();
            found.insert(folder.join("/"), files);
        }
    }
    found
}

#[test]
fn no_files_of_a_folder_import_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).expect("the crates are there");
    let crates = crates.map(|entry| entry.expect("it can be read").path());
    let mut found = BTreeMap::new();
    for src in crates.chain([root.to_owned()]).map(|it| it.join("src")) {
        found.extend(circles(&graph(&src)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_circle_is_found_through_groups_and_files_below() {
    let place = |text: &str| -> Place { text.split('/').map(ToOwned::to_owned).collect() };
    let check = |files: &[(&str, &str)], expected: &[&str]| {
        let modules = files.iter().map(|(name, source)| (place(name), *source));
        let modules: BTreeMap<Place, &str> = modules.collect();
        let graph = modules.iter().map(|(name, source)| {
            let found = used(source, name, &modules);
            (name.clone(), found)
        });
        let found = circles(&graph.collect());
        let found: Vec<String> = found.into_values().flatten().collect();
        assert_eq!(found, expected, "{files:?}");
    };
    let room = ("room", "mod a;\nmod b;\nuse self::a::A;\n");
    check(
        &[room, ("room/a", "use super::b::B;\n"), ("room/b", "")],
        &[],
    );
    check(
        &[
            room,
            ("room/a", "use super::{b::B, c};\n"),
            ("room/b", "use crate::room::a::{self, A};\n"),
            ("room/c", "use super::a::A;\n#[cfg(test)]\nmod tests {}"),
        ],
        &["a", "b", "c"],
    );
    check(
        &[
            room,
            ("room/a", "use super::b::B;\n"),
            ("room/b", ""),
            ("room/b/below", "use super::super::a::A;\n"),
        ],
        &["a", "b"],
    );
    check(
        &[
            ("room/a", "// use super::b::B;\n"),
            (
                "room/b",
                "use super::a;\n#[cfg(test)]\nmod tests {\nuse super::b;\n}",
            ),
        ],
        &[],
    );
}
