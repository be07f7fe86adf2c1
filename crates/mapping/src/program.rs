//! The pages of the program, and of the libraries that it is linked with, that are mapped.

use std::{env, fs, io};

use rustix::mm::{Advice, madvise};

/// Names with which the file of a library begins that the program is linked with, and that stays until its end: the C
/// library, its loader, and what unwinds.
const LINKED: [&str; 4] = ["libc.so.", "ld-linux", "ld64.so.", "libgcc_s.so."];

/// Unmaps the code and the constants of the program and of its libraries: a process needs most of them at its start
/// only. The kernel maps a page again, from its cache, when it is needed.
///
/// # Errors
/// If the kernel does not tell what is mapped.
#[expect(
    clippy::disallowed_methods,
    reason = "a process calls it on a thread that waits"
)]
pub fn unmap_unused_code() -> io::Result<()> {
    let program = env::current_exe()?;
    let program = program.to_string_lossy();
    let maps = fs::read_to_string("/proc/self/smaps")?;
    let mut range = None;
    for line in maps.lines() {
        if line.starts_with(|first: char| first.is_ascii_digit() || first.is_ascii_lowercase()) {
            range = constant_range(line, &program);
        } else if line.strip_prefix("Anonymous:").map(str::trim) == Some("0 kB")
            && let Some((start, end)) = range.take()
        {
            // SAFETY: the range is private, of a file, not writable, and none of its pages is a changed copy (anonymous),
            // so each holds what the file holds, and will again. The kernel may drop such pages by itself at any moment.
            // No part of the program or of a library that it is linked with is ever removed, so the range is still
            // what was read above.
            unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed)? };
        }
    }
    Ok(())
}

/// The range of a mapping of the program or a linked library that is private and not writable; `None` for any other
/// line.
fn constant_range(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let is_constant = matches!(fields.next()?, "r-xp" | "r--p");
    let path = fields.nth(3)?.trim_start();
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let (_, file) = path.rsplit_once('/')?;
    let is_linked = path == program || LINKED.iter().any(|library| file.starts_with(library));
    (is_constant && is_linked).then_some((hex(start)?, hex(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_was_unmapped_runs_again() {
        let message = || format!("{:?}", "text".repeat(3).split_once('x'));
        let before = message();
        unmap_unused_code().expect("the kernel tells what is mapped");
        assert_eq!(message(), before);
    }

    #[test]
    fn only_constant_private_ranges_of_the_program_and_its_libraries_count() {
        let range = |line: &str| constant_range(line, "/bin/a b");
        let line = "1000-3000 r-xp 00000000 fe:00 42                 /bin/a b";
        assert_eq!(range(line), Some((0x1000, 0x3000)));
        assert_eq!(range(&line.replace("r-xp", "rw-p")), None);
        assert_eq!(range(&line.replace("r-xp", "r--s")), None);
        assert_eq!(range(&line.replace("a b", "a")), None);
        for library in [
            "/lib/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
            "/l/libgcc_s.so.1",
        ] {
            assert_eq!(
                range(&line.replace("/bin/a b", library)),
                Some((0x1000, 0x3000))
            );
        }
        assert_eq!(range(&line.replace("/bin/a b", "/lib/libcap.so.2")), None);
        assert_eq!(range("Rss:                  20 kB"), None);
        assert_eq!(range("7ffc-7ffe r-xp 00000000 00:00 0"), None);
    }
}
