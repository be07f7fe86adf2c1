//! The PROXY protocol, versions 1 and 2: who is behind a proxy that passes bytes on.
//!
//! Source: "The PROXY protocol, Versions 1 & 2", HAProxy Technologies, 2.1 to 2.2. Reading
//! is a function of bytes. What belongs to no header is never taken from the connection, so
//! that TLS can begin right behind it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header of version 1, with its end of line.   bytes
pub const V1_BYTES_MAX: usize = 107;
/// Longest header of version 2 that is read. The addresses of TCP take 52, what else a proxy
/// may add is skipped.   bytes
pub const V2_BYTES_MAX: usize = 2048;

const V1_BEGIN: &[u8] = b"PROXY ";
const V1_END: &[u8] = b"\r\n";
const V2_BEGIN: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_FIXED: usize = 16;

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many bytes it has.
    pub length: usize,
    /// The client's address. None where the proxy speaks for itself, or of something that
    /// has no address: the socket's own counts then.
    pub source: Option<SocketAddr>,
}

/// The bytes are no PROXY header, or one that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedHeader;

/// Reads the header that the bytes begin with; none if more must come.
///
/// # Errors
/// If no header begins so.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, MalformedHeader> {
    if is_begun(bytes, V2_BEGIN) {
        parse_v2(bytes)
    } else if is_begun(bytes, V1_BEGIN) {
        parse_v1(bytes)
    } else {
        Err(MalformedHeader)
    }
}

/// Whether the bytes begin with these, as far as they go.
fn is_begun(bytes: &[u8], begin: &[u8]) -> bool {
    let both = bytes.len().min(begin.len());
    bytes[..both] == begin[..both]
}

fn parse_v1(bytes: &[u8]) -> Result<Option<Header>, MalformedHeader> {
    let most = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = memchr::memmem::find(most, V1_END) else {
        return match most.len() {
            V1_BYTES_MAX => Err(MalformedHeader),
            _ => Ok(None),
        };
    };
    let line = most[V1_BEGIN.len()..].get(..end - V1_BEGIN.len());
    let line = line.and_then(|line| str::from_utf8(line).ok());
    Ok(Some(Header {
        length: end + V1_END.len(),
        source: v1_source(line.ok_or(MalformedHeader)?)?,
    }))
}

fn v1_source(line: &str) -> Result<Option<SocketAddr>, MalformedHeader> {
    let mut words = line.split(' ');
    let is_v4 = match words.next() {
        // Whatever stands behind it is to be ignored.
        Some("UNKNOWN") => return Ok(None),
        Some("TCP4") => true,
        Some("TCP6") => false,
        _ => return Err(MalformedHeader),
    };
    let mut address = || {
        let address: IpAddr = words.next()?.parse().ok()?;
        (address.is_ipv4() == is_v4).then_some(address)
    };
    let source = address().ok_or(MalformedHeader)?;
    address().ok_or(MalformedHeader)?;
    let mut port = || -> Option<u16> {
        let word = words.next()?;
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        word.parse().ok().filter(|_| is_number)
    };
    let source_port = port().ok_or(MalformedHeader)?;
    port().ok_or(MalformedHeader)?;
    match words.next() {
        None => Ok(Some(SocketAddr::new(source, source_port))),
        Some(_) => Err(MalformedHeader),
    }
}

fn parse_v2(bytes: &[u8]) -> Result<Option<Header>, MalformedHeader> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<V2_FIXED>() else {
        return Ok(None);
    };
    let [version_and_command, family] = [fixed[12], fixed[13]];
    let follows = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let length = V2_FIXED + follows;
    if length > V2_BYTES_MAX {
        return Err(MalformedHeader);
    }
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(MalformedHeader),
    };
    let Some(addresses) = rest.get(..follows) else {
        return Ok(None);
    };
    let source = match family {
        _ if is_local => None,
        // Each is source, destination, source port, destination port.
        0x11 => {
            let block: &[u8; 12] = addresses.first_chunk().ok_or(MalformedHeader)?;
            let [a, b, c, d, _, _, _, _, high, low, _, _] = *block;
            let port = u16::from_be_bytes([high, low]);
            Some(SocketAddr::from((Ipv4Addr::new(a, b, c, d), port)))
        }
        0x21 => {
            let block: &[u8; 36] = addresses.first_chunk().ok_or(MalformedHeader)?;
            let source: &[u8; 16] = block.first_chunk().ok_or(MalformedHeader)?;
            let port = u16::from_be_bytes([block[32], block[33]]);
            Some(SocketAddr::from((Ipv6Addr::from(*source), port)))
        }
        // A Unix socket, a datagram, or not said: nothing that has an address for us.
        _ => None,
    };
    Ok(Some(Header { length, source }))
}
