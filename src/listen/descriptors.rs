//! How many file descriptors this process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit, so that the default of a shell or a service manager
/// does not bound the connections. Returns the limit in force, `u64::MAX` for none. If the system
/// does not allow it, the soft limit stays.
pub fn raise() -> u64 {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        let raised = Rlimit {
            current: now.maximum,
            maximum: now.maximum,
        };
        let _ = setrlimit(Resource::Nofile, raised);
    }
    in_force()
}

/// The current limit.
#[must_use]
pub fn in_force() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The limit after [`raise`].
#[must_use]
pub fn allowed() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}
