//! A library in C that answers for a part of the C library, in a process that is started with it.

use std::path::PathBuf;

use tempfile::TempDir;

/// A library that was built; its file lives as long as this.
pub(crate) struct Preloaded(TempDir);

impl Preloaded {
    /// Builds it.
    pub(crate) fn build(source: &str) -> Self {
        let this = Self(tempfile::tempdir().expect("a temporary directory"));
        let file = this.0.path().join("source.c");
        std::fs::write(&file, source).expect("it can be written to");
        let built = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&this.file(), &file])
            .arg("-ldl")
            .status()
            .expect("there is a C compiler, which the build needs too");
        assert!(built.success(), "it is built");
        this
    }

    /// The value of `LD_PRELOAD`.
    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("preloaded.so")
    }
}
