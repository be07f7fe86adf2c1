//! Finds the process that listens on an address, as far as `/proc` shows it to this user.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::call::Bind;

/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";
/// The flag of a socket file that listens, in `/proc/net/unix`.
const ACCEPTS: u64 = 1 << 16;

/// A process that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// Process id.
    pub(super) pid: u32,
    /// Process name, as the kernel keeps it.
    pub(super) name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, pid {}", self.name, self.pid)
    }
}

/// The process that listens there. `None` if there is none, or if it is another user's.
pub(super) fn of(bind: &Bind) -> Option<Holder> {
    let inodes = match bind {
        Bind::Tcp(address) => ["tcp", "tcp6"]
            .into_iter()
            .filter_map(|table| fs::read_to_string(format!("/proc/net/{table}")).ok())
            .flat_map(|table| listening(&table, *address))
            .collect(),
        Bind::Unix(path) => {
            let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
            listening_file(&table, path)
        }
    };
    with_one_of(&inodes)
}

/// The sockets of a table that listen where this address could not.
fn listening(table: &str, address: SocketAddr) -> Vec<String> {
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut words = row.split_whitespace().skip(1);
        let local = words.next()?;
        let state = words.nth(1)?;
        let inode = words.nth(5)?;
        let at = socket_address(local).filter(|at| state == LISTENS && collide(*at, address))?;
        (at.port() != 0).then(|| inode.to_owned())
    });
    rows.collect()
}

fn listening_file(table: &str, path: &Path) -> Vec<String> {
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut words = row.split_whitespace();
        let flags = words.nth(3)?;
        let inode = words.nth(2)?;
        let accepts = u64::from_str_radix(flags, 16).ok()? & ACCEPTS != 0;
        // A path may contain spaces.
        let is_here = row.ends_with(&format!(" {}", path.display()));
        (accepts && is_here).then(|| inode.to_owned())
    });
    rows.collect()
}

/// An address of the kernel's table. Each four bytes are a number of this machine.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match *bytes.as_slice() {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}

fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    let is_any = |ip: IpAddr| ip.is_unspecified();
    one.port() == other.port() && (a == b || is_any(a) || is_any(b))
}

/// The first process that has one of these sockets open.
fn with_one_of(inodes: &[String]) -> Option<Holder> {
    if inodes.is_empty() {
        return None;
    }
    let names: Vec<String> = inodes.iter().map(|it| format!("socket:[{it}]")).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids: Vec<u32> = processes
        .filter_map(|it| it.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let has_one = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|fd| {
            let leads_to = fs::read_link(fd.path()).unwrap_or_default();
            names.iter().any(|name| leads_to == Path::new(name))
        })
    };
    let pid = pids.into_iter().find(has_one)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim().to_owned();
    Some(Holder { pid, name })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_listener_of_this_process_is_found_by_every_address_that_leads_to_it() {
        let own = std::process::id();
        for wide in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let listener = TcpListener::bind(wide).expect("a free port");
            let port = listener.local_addr().expect("it is bound").port();
            let bind = Bind::Tcp(([127, 0, 0, 1], port).into());
            assert_eq!(of(&bind).map(|it| it.pid), Some(own), "{wide}");
            drop(listener);
            assert_eq!(of(&bind), None, "{wide}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a socket");
        let listener = UnixListener::bind(&path).expect("nothing is in the way");
        let bind = Bind::Unix(path.as_path().into());
        assert_eq!(of(&bind).map(|it| it.pid), Some(own));
        drop(listener);
        assert_eq!(of(&bind), None);
    }
}
