//! The meaning of a backend's name now: its addresses, which one took the connection, and which ones failed.

use super::Finding;
use super::kinds::BACKEND_NAME;
use crate::call::Destination;
use crate::forward::{AddressState, BackendAddress, NameState};

/// A finding for the name of a backend. `None` if it has no address, which the connect has reported.
pub(super) fn finding(
    of: Destination,
    name: &BackendAddress,
    state: &NameState,
) -> Option<Finding> {
    if state.addresses.is_empty() {
        return None;
    }
    let about = format!("{} name", of.label());
    let addresses = state.addresses.iter().map(with_state);
    let found = format!("{name} is {}", Vec::from_iter(addresses).join(", "));
    // "localhost" often has an address of each kind, and a backend listens at one.
    let is_dead = |it: &&AddressState| it.failure.is_some() && !it.address.ip().is_loopback();
    let Some(dead) = state.addresses.iter().find(is_dead) else {
        return Some(BACKEND_NAME.ok(about, found));
    };
    Some(BACKEND_NAME.warning(
        about,
        found,
        format!("no connection to {}; it is tried last", dead.address),
        "start the backend there, or remove the address from the name",
    ))
}

fn with_state(it: &AddressState) -> String {
    match &it.failure {
        Some(failure) => format!("{} ({failure})", it.address),
        None if it.is_in_use => format!("{} (in use)", it.address),
        None => it.address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    fn check(addresses: &[(&str, bool, Option<&str>)], status: Option<CheckStatus>, found: &str) {
        let addresses = addresses
            .iter()
            .map(|(address, is_in_use, failure)| AddressState {
                address: address.parse().expect("an address"),
                is_in_use: *is_in_use,
                failure: failure.map(str::to_owned),
            });
        let state = NameState {
            addresses: addresses.collect(),
            ..NameState::default()
        };
        let name = BackendAddress::Name("sdk.example".into(), 80);
        let finding = finding(Destination::Http, &name, &state);
        assert_eq!(finding.as_ref().map(|it| it.status), status);
        let shown = finding.map(|it| it.found).unwrap_or_default();
        assert_eq!(shown, found);
    }

    #[test]
    fn the_addresses_of_a_name_are_listed_with_what_is_known_of_each() {
        check(&[], None, "");
        check(
            &[("10.0.0.1:80", true, None), ("10.0.0.2:80", false, None)],
            Some(CheckStatus::Ok),
            "sdk.example:80 is 10.0.0.1:80 (in use), 10.0.0.2:80",
        );
        check(
            &[
                (
                    "10.0.0.1:80",
                    false,
                    Some("took no connection within 100 ms"),
                ),
                ("10.0.0.2:80", true, None),
            ],
            Some(CheckStatus::Warning),
            "sdk.example:80 is 10.0.0.1:80 (took no connection within 100 ms), 10.0.0.2:80 (in use)",
        );
        check(
            &[
                ("[::1]:80", false, Some("refused")),
                ("127.0.0.1:80", true, None),
            ],
            Some(CheckStatus::Ok),
            "sdk.example:80 is [::1]:80 (refused), 127.0.0.1:80 (in use)",
        );
    }
}
