//! Sets the commit that is built, if it is known, and the order of the functions of a release.

#![allow(clippy::disallowed_methods, reason = "a build script serves no calls")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    revision();
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        order();
    }
}

fn revision() {
    println!("cargo::rerun-if-env-changed=TIDEGATE_REVISION");
    // Grows with every commit; missing where there is no repository, as in an image.
    let log = Path::new(".git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let revision = env::var("TIDEGATE_REVISION").ok().or_else(|| {
        let output = Command::new("git")
            .args(["rev-parse", "--short=12", "HEAD"])
            .output()
            .ok()?;
        let hash = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| hash.trim().to_owned())
    });
    let revision = revision.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=TIDEGATE_REVISION={revision}");
}

/// Puts the functions that a sidecar runs side by side. The kernel maps a program in pieces of
/// 64 KiB, so functions that are spread over the program take the memory of most of it.
/// (docs/decisions/0014)
fn order() {
    const NAMES: &str = "link/order.txt";
    println!("cargo::rerun-if-changed={NAMES}");
    let Ok(names) = fs::read_to_string(NAMES) else {
        return;
    };
    let names = || names.lines().filter(|line| !line.starts_with('#'));
    // Another compiler, or other dependencies than when the list was made, give functions other
    // hashes. The patterns then find them, and namesakes with them.
    let sections: String = names()
        .map(str::to_owned)
        .chain(names().map(without_hashes))
        .map(|name| format!("    *(.text.{name} .text.unlikely.{name})\n"))
        .collect();
    let script =
        format!("SECTIONS {{\n  .text.order : {{\n{sections}  }}\n}}\nINSERT BEFORE .text;\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let path = out.join("order.ld");
    fs::write(&path, script).expect("OUT_DIR can be written");
    let argument = format!("-Wl,-T,{}", path.display());
    if links_with(&argument, &out) {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}

/// A pattern of a function's name without what differs from one build to another: the 16 digits
/// at the end, or the word after each `Cs`, by which the compiler distinguishes crates.
fn without_hashes(name: &str) -> String {
    if !name.starts_with("_R") {
        return match name.rsplit_once("17h") {
            Some((path, _)) => format!("{path}17h*"),
            None => name.to_owned(),
        };
    }
    let mut parts = name.split("Cs");
    let mut pattern = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.split_once('_').map_or("", |(_, rest)| rest);
        pattern.push_str("Cs*_");
        pattern.push_str(rest);
    }
    pattern
}

/// Whether the linker accepts the argument: not all of them do.
fn links_with(argument: &str, out: &Path) -> bool {
    let source = out.join("order_probe.rs");
    fs::write(&source, "fn main() {}").expect("OUT_DIR can be written");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets it"));
    rustc
        .args(["--crate-type", "bin", "--target"])
        .arg(env::var_os("TARGET").expect("cargo sets it"))
        .arg(format!("-Clink-arg={argument}"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    }
    rustc
        .arg("-o")
        .arg(out.join("order_probe"))
        .arg(source)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
