//! The options of `[forwarded]`: what a service gets to know of a client, and what of it may come from the
//! client itself.

use crate::call::{BackendKind, FieldAction, ForwardedField};
use crate::options::kind::choice;
use crate::options::{options, words};

words! {
    /// Rule for a field that names the client to the service.
    #[derive(Default)]
    pub enum ForwardedRule {
        /// Decided by the kind of the backend and by who connects.
        #[default]
        Auto = "auto",
        /// [`FieldAction::Set`]
        Set = "set",
        /// [`FieldAction::Append`]
        Append = "append",
        /// [`FieldAction::Pass`]
        Pass = "pass",
        /// [`FieldAction::Remove`]
        Remove = "remove",
    }
}

impl ForwardedRule {
    /// The action for the requests of a connection, which a trusted proxy may have made.
    fn action(self, kind: BackendKind, is_of_proxy: bool) -> FieldAction {
        match self {
            Self::Auto if !kind.reads_forwarded_fields() => FieldAction::Pass,
            Self::Auto if is_of_proxy => FieldAction::Append,
            Self::Auto | Self::Set => FieldAction::Set,
            Self::Append => FieldAction::Append,
            Self::Pass => FieldAction::Pass,
            Self::Remove => FieldAction::Remove,
        }
    }
}

options! {
    /// The header fields that name the client to the service: docs/how-to/what-your-service-sees.md. Many
    /// services believe them if they come from this machine, as all calls of a sidecar do. Each option is one
    /// of: "set": a client's value is dropped, and Tidegate writes its own from the connection. "append": a
    /// client's value is kept. Tidegate adds its own to a list, and writes its own if no single value is
    /// there. "pass": the field is sent as it came. "remove": the field is never sent. "auto", the default:
    /// with backend.kind = "http" it is "append" for proxies in callers.trusted_proxies and "set" for all
    /// other clients; with "zvm" it is "pass".
    pub struct ForwardedSection => ForwardedSettings {
        /// X-Forwarded-For, a list: the address of the client, from a PROXY header if the listener reads
        /// one. A client on a socket file has no address, so none is written.
        x_forwarded_for: ForwardedRule = choice().or(ForwardedRule::Auto);

        /// X-Forwarded-Proto: "https" if the client's connection has TLS here, else "http". With "append" or
        /// "pass", every client that connects here directly can claim "https".
        x_forwarded_proto: ForwardedRule = choice().or(ForwardedRule::Auto);

        /// X-Forwarded-Host: the host that the client asked, from Host. Tidegate also sends Host unchanged.
        x_forwarded_host: ForwardedRule = choice().or(ForwardedRule::Auto);

        /// Forwarded, the standard list (RFC 7239), with address, host and scheme:
        /// for=192.0.2.1;host=example.org;proto=https. A client on a socket file is "unknown".
        forwarded: ForwardedRule = choice().or(ForwardedRule::Auto);

        /// X-Real-IP: the address of the client, as in X-Forwarded-For. With "append" a proxy's value is
        /// kept; without one, the address of the proxy is written.
        x_real_ip: ForwardedRule = choice().or(ForwardedRule::Auto);
    }
}

impl ForwardedSettings {
    /// The action for each field, in the order of [`ForwardedField::ALL`], on a connection that a trusted proxy may
    /// have made.
    pub(super) fn actions(
        &self,
        kind: BackendKind,
        is_of_proxy: bool,
    ) -> [FieldAction; ForwardedField::ALL.len()] {
        ForwardedField::ALL.map(|field| {
            let rule = match field {
                ForwardedField::XForwardedFor => self.x_forwarded_for,
                ForwardedField::XRealIp => self.x_real_ip,
                ForwardedField::XForwardedProto => self.x_forwarded_proto,
                ForwardedField::XForwardedHost => self.x_forwarded_host,
                ForwardedField::Forwarded => self.forwarded,
            };
            rule.action(kind, is_of_proxy)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_believes_trusted_proxies_and_no_other_client() {
        let check = |kind, is_of_proxy, action| {
            assert_eq!(ForwardedRule::Auto.action(kind, is_of_proxy), action);
        };
        check(BackendKind::Http, false, FieldAction::Set);
        check(BackendKind::Http, true, FieldAction::Append);
        check(BackendKind::Zvm, false, FieldAction::Pass);
        check(BackendKind::Zvm, true, FieldAction::Pass);
    }

    #[test]
    fn a_word_counts_for_every_backend_and_every_client() {
        for (rule, action) in [
            (ForwardedRule::Set, FieldAction::Set),
            (ForwardedRule::Append, FieldAction::Append),
            (ForwardedRule::Pass, FieldAction::Pass),
            (ForwardedRule::Remove, FieldAction::Remove),
        ] {
            for kind in [BackendKind::Http, BackendKind::Zvm] {
                assert_eq!(rule.action(kind, true), action);
                assert_eq!(rule.action(kind, false), action);
            }
        }
    }

    #[test]
    fn each_option_is_for_its_own_field() {
        let all = ForwardedSettings {
            x_forwarded_for: ForwardedRule::Append,
            x_forwarded_proto: ForwardedRule::Pass,
            x_forwarded_host: ForwardedRule::Remove,
            forwarded: ForwardedRule::Auto,
            x_real_ip: ForwardedRule::Set,
        };
        let expected = [
            FieldAction::Append,
            FieldAction::Set,
            FieldAction::Pass,
            FieldAction::Remove,
            FieldAction::Set,
        ];
        assert_eq!(all.actions(BackendKind::Http, false), expected);
    }
}
