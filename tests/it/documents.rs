//! The documents are correct as far as a test can check: valid configs, existing files and tests,
//! working links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate::call::{Reason, Rejection};

use crate::authority::Authority;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every `.md` at the root and anywhere under docs, by its path from the root.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() && (folder != root() || path.ends_with("docs")) {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let relative = path.strip_prefix(root()).expect("it stands under the root");
                found.push(relative.to_str().expect("a name in UTF-8").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The text outside of blocks.
fn prose(document: &str) -> impl Iterator<Item = &str> {
    document.split("```").step_by(2)
}

/// The fenced blocks of a language.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    document
        .split(&fence)
        .skip(1)
        .map(|rest| rest.split("```").next().expect("split gives one at least"))
        .collect()
}

/// The text in code font, outside of blocks.
fn code(document: &str) -> Vec<&str> {
    prose(document)
        .flat_map(|prose| prose.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_config_in_the_documents_is_taken() {
    let mut taken = 0;
    let authority = Authority::new();
    let own = authority.issue(&["a.example"]);
    // Certificates that a config may name are there.
    let files = [
        ("/etc/tidegate/store-ca.pem", authority.ca()),
        ("/etc/tidegate/leases-ca.pem", authority.ca()),
        ("/etc/tidegate/tls.crt", own.cert().to_owned()),
        ("/etc/tidegate/tls.key", own.key().to_owned()),
    ];
    let with_files = |block: &str| {
        let replace = |text: String, (from, to): &(&str, String)| text.replace(from, to);
        files.iter().fold(block.to_owned(), replace)
    };
    for path in documents() {
        // Its blocks are scenario files.
        if path.ends_with("simulate.md") {
            continue;
        }
        for block in blocks(&read(&path), "toml") {
            if block.starts_with("# part") {
                continue;
            }
            let block = with_files(block);
            if block.starts_with("# leases.toml") {
                let read = tidegate_lease_server::config::read(&block, &path);
                read.unwrap_or_else(|problems| panic!("{}", problems.render(false)));
                taken += 1;
                continue;
            }
            if let Err(problems) = tidegate::config::read(&block, &path, std::iter::empty()) {
                panic!("{}", problems.render(false));
            }
            taken += 1;
        }
    }
    assert!(taken >= 3, "{taken} configs were found");
}

#[test]
fn every_file_and_test_that_the_map_names_exists() {
    let mut names = 0;
    for path in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/invariants.md",
        "docs/libraries.md",
        "docs/life-of-a-call.md",
        "docs/how-to/operating.md",
    ] {
        let document = read(path);
        for word in code(&document) {
            if let Some(missing) = missing(word) {
                panic!("{path} names {word}: {missing}");
            }
            names += usize::from(word.contains("::") || word.ends_with(".rs"));
        }
    }
    assert!(names >= 60, "{names} names were found");
}

/// The app's integration tests, and those of every crate.
fn test_folders() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).expect("the workspace has crates");
    let crates = crates.map(|entry| entry.expect("a folder can be read").path().join("tests"));
    [root().join("tests")]
        .into_iter()
        .chain(crates)
        .flat_map(|tests| {
            [
                tests.join("it"),
                tests.join("lab"),
                tests.join("leases"),
                tests,
            ]
        })
        .collect()
}

/// The missing part of a named file or test: `src/listen.rs`, `leaving::a_client_…`.
fn missing(word: &str) -> Option<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
    let is_test = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c);
    if word.ends_with(".rs") && word.chars().all(is_path) {
        return (!root().join(word).is_file()).then(|| "no such file".to_owned());
    }
    let (module, test) = word.rsplit_once("::")?;
    if !word.chars().all(is_test) {
        return None;
    }
    let file = format!("{}.rs", module.replace("::", "/"));
    // A binary of its own has its tests in its main file.
    let of_binary = format!("{module}/main.rs");
    let source = test_folders()
        .iter()
        .flat_map(|folder| [folder.join(&file), folder.join(&of_binary)])
        .find_map(|path| fs::read_to_string(path).ok());
    match source {
        None => Some(format!("no {file} among the tests")),
        Some(source) if !source.contains(&format!("fn {test}(")) => {
            Some(format!("no such test in {file}"))
        }
        Some(_) => None,
    }
}

#[test]
fn a_file_or_test_that_does_not_exist_is_found_out() {
    let check = |word: &str, is_missing: bool| {
        assert_eq!(missing(word).is_some(), is_missing, "{word}");
    };
    check("src/listen.rs", false);
    check("src/listening.rs", true);
    check("floor_plan::no_module_imports_sideways_or_upward", false);
    check("floor_plan::all_modules_import_everything", true);
    check("nowhere::no_module_imports_sideways_or_upward", true);
    check("laws::many_flows_in_turn_keep_every_law", false);
    check("simulation::one_seed_is_one_run", false);
    check("Caller::ANONYMOUS", false);
    check("when_full", false);
}

#[test]
fn the_evidence_has_each_promise_word_by_word() {
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let evidence = joined(&read("docs/reference/evidence.md"));
    let promises = read("docs/explanation/promises.md");
    let parts = promises
        .split("\n## ")
        .filter(|part| part.starts_with(|c: char| c.is_ascii_digit()));
    let mut found = 0;
    for part in parts {
        let claim = joined(part.split("\n\n").nth(1).expect("a paragraph"));
        assert!(
            evidence.contains(&claim),
            "run `make evidence`: it lacks {claim:?}"
        );
        found += 1;
    }
    assert_eq!(found, 8);
}

/// The anchors of the headings of a page, as GitHub and the site make them.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(document).flat_map(str::lines) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let plain: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .collect();
        let plain = plain.replace(' ', "-");
        // The same heading again gets a number.
        let mut anchor = plain.clone();
        for number in 1.. {
            if anchors.insert(anchor) {
                break;
            }
            anchor = format!("{plain}-{number}");
        }
    }
    anchors
}

/// The missing target of a link: its file, or the heading in it.
fn dead(page: &str, link: &str) -> Option<String> {
    let (target, anchor) = match link.split_once('#') {
        Some((target, anchor)) => (target, Some(anchor)),
        None => (link, None),
    };
    let page = root().join(page);
    let path = match target {
        "" => page,
        _ => page.parent().expect("a page is in a folder").join(target),
    };
    if !path.exists() {
        return Some("no such file".to_owned());
    }
    let anchor = anchor?;
    if path.extension().is_none_or(|it| it != "md") {
        return None;
    }
    let document = fs::read_to_string(&path).expect("a page can be read");
    (!anchors(&document).contains(anchor)).then(|| format!("no heading has #{anchor}"))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_in_it() {
    let mut links = 0;
    let mut mistakes = Vec::new();
    for path in documents() {
        let document = read(&path);
        for rest in prose(&document).flat_map(|prose| prose.split("](").skip(1)) {
            let link = rest.split(')').next().expect("split gives one at least");
            if link.contains("://") {
                continue;
            }
            links += 1;
            if let Some(lacks) = dead(&path, link) {
                mistakes.push(format!("{path} links to {link}: {lacks}"));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert!(links >= 200, "{links} links were found");
}

#[test]
fn a_dead_link_is_found_out() {
    let check = |link: &str, is_dead: bool| {
        let found = dead("CONTRIBUTING.md", link);
        assert_eq!(found.is_some(), is_dead, "{link}: {found:?}");
    };
    check("CHANGELOG.md", false);
    check("CHANGELOG.md#unreleased", false);
    check("#add-a-protocol", false);
    check("src/main.rs#L1", false);
    check("CHANGES.md", true);
    check("CHANGELOG.md#unreleasedd", true);
    check("#add-a-protocoll", true);
    let twice = anchors("# A `b`, c!\n## Twice\n## Twice\n```\n# comment\n```\n#no\n");
    assert_eq!(
        twice.iter().map(String::as_str).collect::<Vec<_>>(),
        ["a-b-c", "twice", "twice-1"]
    );
}

/// The index for users, and the pages that list others.
const INDEXES: [&str; 5] = [
    "docs/index.md",
    "docs/sharing.md",
    "docs/services.md",
    "docs/engineers.md",
    "docs/decisions/index.md",
];

/// The pages that no list of an index names, by themselves or with their folder.
fn unlisted<'a>(indexes: &[(&str, String)], pages: &'a [String]) -> Vec<&'a str> {
    let targets = |(path, index): &(&str, String)| -> Vec<PathBuf> {
        let folder = root().join(path).parent().expect("a folder").to_owned();
        let target = |line: &str| {
            let (_, rest) = line.strip_prefix("- [")?.split_once("](")?;
            folder.join(rest.split(')').next()?).canonicalize().ok()
        };
        index.lines().filter_map(target).collect()
    };
    let listed: BTreeSet<PathBuf> = indexes.iter().flat_map(targets).collect();
    let is_listed = |page: &&String| {
        let page = root().join(page).canonicalize().expect("a page exists");
        let folder = page.parent().expect("a page is in a folder");
        listed.contains(&page) || listed.contains(folder)
    };
    pages
        .iter()
        .filter(|page| *page != INDEXES[0] && !is_listed(page))
        .map(String::as_str)
        .collect()
}

#[test]
fn every_page_is_in_a_list_of_the_index() {
    let mut indexes = INDEXES.map(|path| (path, read(path)));
    let pages = documents();
    assert_eq!(unlisted(&indexes, &pages), [""; 0]);
    let line = "- [Security](../SECURITY.md)";
    let index = &mut indexes[0].1;
    assert!(index.lines().any(|it| it == line), "the index has {line}");
    *index = index.replace(line, "");
    assert_eq!(unlisted(&indexes, &pages), ["SECURITY.md"]);
}

#[test]
fn packages_install_each_page_that_a_message_or_an_alert_names() {
    let installed = ["docs/explanation/", "docs/how-to/", "docs/reference/"];
    let pack = read("packaging/pack.py");
    for folder in installed {
        let name = folder.trim_start_matches("docs/").trim_end_matches('/');
        assert!(pack.contains(&format!("\"{name}\"")), "{folder}");
    }
    let mut texts = vec![read("packaging/prometheus/alerts.yml")];
    let mut folders = vec![root().join("src"), root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.extension().and_then(|it| it.to_str()) {
                Some("rs") => texts.push(fs::read_to_string(&path).expect("a file in UTF-8")),
                _ if path.is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    // Comments name pages for engineers, too; the docs of an option are shown.
    let shown = texts.iter().flat_map(|text| text.lines());
    let shown = shown.filter(|line| !line.trim_start().starts_with("//! "));
    let named = shown.filter_map(|line| {
        let (_, rest) = line.split_once("docs/")?;
        let (page, _) = rest.split_once(".md")?;
        // A part in braces is filled in elsewhere.
        (!page.contains('{')).then(|| format!("docs/{page}.md"))
    });
    let named: BTreeSet<String> = named.collect();
    assert!(named.len() > 10, "{named:?}");
    for page in named {
        assert!(root().join(&page).exists(), "{page} does not exist");
        let is_installed = installed.iter().any(|folder| page.starts_with(folder));
        assert!(is_installed, "{page} is named and not installed");
    }
}

#[test]
fn the_users_index_has_few_links_and_no_report() {
    let index = read("docs/index.md");
    let links = index.matches("](").count();
    assert!(links <= 45, "{links} links");
    assert!(!index.contains("](reports"), "reports are for engineers");
}

#[test]
fn every_picture_is_what_its_source_says() {
    let script = root().join("docs/pictures/make.py");
    let made = std::process::Command::new("python3")
        .arg("-B")
        .arg(script)
        .arg("--check")
        .output()
        .expect("python3 runs");
    assert!(
        made.status.success(),
        "{}{}",
        String::from_utf8_lossy(&made.stdout),
        String::from_utf8_lossy(&made.stderr)
    );
}

#[test]
fn every_reason_of_a_refusal_or_a_closed_connection_is_on_its_pages() {
    let refusals = Reason::ALL.iter().map(|reason| reason.label());
    let rejections = Rejection::ALL.iter().map(|rejection| rejection.label());
    let expected = refusals
        .map(|label| (label, "docs/reference/errors.md"))
        .chain(rejections.map(|label| (label, "docs/how-to/callers.md")));
    for (label, page) in expected {
        assert!(code(&read(page)).contains(&label), "{page} lacks `{label}`");
    }
}

#[test]
fn the_lexicon_has_no_word_twice() {
    let lexicon = read("docs/lexicon.md");
    let mut words = BTreeSet::new();
    for row in lexicon.lines().filter(|line| line.starts_with("| ")) {
        let word = row.split('|').nth(1).expect("a first cell").trim();
        if word != "word" {
            assert!(words.insert(word), "{word} stands there twice");
        }
    }
    assert!(words.len() >= 60, "{} words were found", words.len());
}

#[test]
fn a_decision_says_what_it_is_about_and_what_would_undo_it() {
    let decisions: Vec<String> = documents()
        .into_iter()
        .filter(|path| path.contains("/decisions/") && !path.ends_with("/index.md"))
        .collect();
    assert!(!decisions.is_empty());
    let index = read("docs/decisions/index.md");
    for (path, number) in decisions.iter().zip(1..) {
        let name = path.rsplit('/').next().expect("a path has a name");
        let text = read(path);
        assert!(name.starts_with(&format!("{number:04}-")), "{path}");
        assert!(text.starts_with(&format!("# {number:04}: ")), "{path}");
        let title = text
            .lines()
            .next()
            .expect("a title")
            .trim_start_matches("# ");
        let line = format!("- [{title}]({name})");
        assert!(index.contains(&line), "the index of decisions lacks {line}");
        let mut rest = &*text;
        for heading in [
            "Problem",
            "Non-goals",
            "Choice",
            "What would change our mind",
        ] {
            let heading = format!("\n## {heading}\n\n");
            rest = rest
                .split_once(&heading)
                .unwrap_or_else(|| panic!("{path} has no{heading}"))
                .1;
        }
    }
}

#[test]
fn the_map_gives_every_module_the_level_that_the_floor_plan_gives_it() {
    let map = read("ARCHITECTURE.md");
    for (level, modules) in crate::floor_plan::LEVELS {
        let row = map
            .lines()
            .find(|line| line.starts_with(&format!("| {level} |")))
            .unwrap_or_else(|| panic!("no row for level {level}"));
        let cell = row.split('|').nth(2).expect("a second cell");
        let named: BTreeSet<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, modules.iter().copied().collect(), "level {level}");
    }
}
