//! Sets the commit that is built, if it is known.

#![allow(clippy::disallowed_methods, reason = "a build script serves no calls")]

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
