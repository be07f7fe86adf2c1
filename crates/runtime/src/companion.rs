//! Programs that are installed together.

use std::path::PathBuf;

/// The program of this name in the directory of the running one. If there is none, the bare name,
/// which the system looks up in `PATH`.
#[must_use]
pub fn companion(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|own| own.with_file_name(name));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| name.into())
}
