//! A name of this process that a restart keeps, and that no other process has meanwhile.
//!
//! It is made from the boot of the machine, the network namespace, the name of the host and the
//! places where the process listens. Of two processes in one namespace, only one can listen at a
//! place. The boot differs between machines, also between clones of one image. To be sure, the
//! process claims the name with a socket in the abstract namespace, which belongs to the network
//! namespace too. The kernel removes it with the process, however that ends.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The claimed name of a process.
#[derive(Debug)]
pub struct ProcessName {
    name: String,
    /// Bound while the name is claimed.
    _claim: UnixDatagram,
}

impl ProcessName {
    /// The name of a process that listens at these places; `None` if the system does not say on which
    /// machine this is, or there are no places.
    #[must_use]
    pub fn of(places: &[String]) -> Option<String> {
        if places.is_empty() {
            return None;
        }
        let boot = read("/proc/sys/kernel/random/boot_id")?;
        let network = fs::read_link("/proc/self/ns/net").ok()?;
        let host = read("/proc/sys/kernel/hostname")?;
        let mut places: Vec<&str> = places.iter().map(String::as_str).collect();
        places.sort_unstable();
        let mut hash = Hash::default();
        hash.add(&boot);
        hash.add(&network.to_string_lossy());
        places.iter().for_each(|place| hash.add(place));
        Some(format!("{host}:{:016x}", hash.0))
    }

    /// Claims the name of a process that listens at these places; `None` if it has none, or another
    /// process has it.
    #[must_use]
    pub fn claim(places: &[String]) -> Option<Self> {
        let name = Self::of(places)?;
        let claim = bind(&name).ok()?;
        Some(Self {
            name,
            _claim: claim,
        })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

fn bind(name: &str) -> io::Result<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("tidegate/{name}"))?;
    UnixDatagram::bind_addr(&address)
}

#[expect(clippy::disallowed_methods, reason = "/proc is no disk")]
fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// FNV-1a, which is the same in every version of the program.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Adds a text and its end.
    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(of: &[&str]) -> Vec<String> {
        of.iter().map(|&place| place.to_owned()).collect()
    }

    #[test]
    fn the_name_is_that_of_the_places_in_any_order() {
        let name = |of: &[&str]| ProcessName::of(&places(of)).expect("this is Linux");
        let both = name(&["127.0.0.1:1", "/run/a.sock"]);
        assert_eq!(both, name(&["/run/a.sock", "127.0.0.1:1"]));
        assert_ne!(both, name(&["127.0.0.1:1"]));
        assert_ne!(name(&["a", "b"]), name(&["ab"]));
        assert_eq!(ProcessName::of(&[]), None);
    }

    #[test]
    fn a_name_is_claimed_once_and_free_again_behind_its_process() {
        let of = places(&["a place of this test"]);
        let first = ProcessName::claim(&of).expect("it is free");
        assert!(ProcessName::claim(&of).is_none());
        assert!(ProcessName::claim(&places(&["another"])).is_some());
        let name = first.as_str().to_owned();
        drop(first);
        let again = ProcessName::claim(&of).expect("it is free again");
        assert_eq!(again.as_str(), name);
    }
}
