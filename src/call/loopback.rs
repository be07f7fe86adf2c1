//! Connections within this machine.

use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// Takes the plainest congestion control, if the other end is on this machine. The system's may estimate rates and
/// pace packets, as BBR does, and there is nothing to be estimated here. A listener's connections inherit it.
pub(crate) fn without_pacing(socket: impl AsFd, other: IpAddr) {
    if other.to_canonical().is_loopback() {
        // Every Linux has this one, and lets every process choose it. Without it, sending only costs more.
        let _ = sockopt::set_tcp_congestion(socket, "reno");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_connections_within_this_machine_change_and_a_listeners_inherit_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let usual = sockopt::tcp_congestion(&listener).unwrap();
        without_pacing(&listener, [192, 0, 2, 1].into());
        assert_eq!(sockopt::tcp_congestion(&listener).unwrap(), usual);
        without_pacing(&listener, Ipv4Addr::LOCALHOST.to_ipv6_mapped().into());
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(sockopt::tcp_congestion(&accepted).unwrap(), "reno");
        assert_eq!(sockopt::tcp_congestion(&client).unwrap(), usual);
    }
}
