//! The `tidegate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main()
}

/// A waiting HTTP call keeps two buffers of 8 KiB, all but empty. jemalloc gives them pages of
/// their own, of which only what is written to costs memory. Its threads in the background return
/// what reading a large config took. See docs/decisions/0009.
#[cfg(all(
    feature = "jemalloc",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
