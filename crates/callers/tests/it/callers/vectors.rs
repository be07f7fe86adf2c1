//! Facts about XAPI's callers, as tables. Patterns are written in our syntax: an ip prefix of whole numbers is the
//! same there and here, and what is empty is any.

/// A step of a history.
pub(crate) enum Op {
    /// Adds a caller with this pattern, if it is accepted.
    Insert {
        /// The user agent's pattern.
        agent: &'static str,
        /// The address's pattern.
        ip: &'static str,
        /// The value by which the caller is known.
        value: u64,
        /// Whether it is accepted.
        accepted: bool,
    },
    /// Removes the caller with this pattern, if there is one.
    Delete {
        /// The user agent's pattern.
        agent: &'static str,
        /// The address's pattern.
        ip: &'static str,
    },
    /// Looks up who matches.
    Get {
        /// The user agent seen.
        agent: &'static str,
        /// The address seen.
        ip: &'static str,
        /// In XAPI's order.
        xapi: &'static [u64],
        /// In the order of XAPI's design document: the most literal characters first, on a
        /// tie the address.
        document: &'static [u64],
        /// In ours.
        ours: &'static [u64],
    },
}

const fn insert(agent: &'static str, ip: &'static str, value: u64) -> Op {
    Op::Insert {
        agent,
        ip,
        value,
        accepted: true,
    }
}

const fn refuse(agent: &'static str, ip: &'static str, value: u64) -> Op {
    Op::Insert {
        agent,
        ip,
        value,
        accepted: false,
    }
}

const fn delete(agent: &'static str, ip: &'static str) -> Op {
    Op::Delete { agent, ip }
}

const fn get(agent: &'static str, ip: &'static str, all: &'static [u64]) -> Op {
    Op::Get {
        agent,
        ip,
        xapi: all,
        document: all,
        ours: all,
    }
}

const fn differing(
    agent: &'static str,
    ip: &'static str,
    [xapi, document, ours]: [&'static [u64]; 3],
) -> Op {
    Op::Get {
        agent,
        ip,
        xapi,
        document,
        ours,
    }
}

/// Histories of the table of callers, by what they show.
pub(crate) const CALLER_TABLE: &[(&str, &[Op])] = &[
    ("an empty table has no caller", &[get("test", "", &[])]),
    (
        "who was added is found",
        &[insert("test", "", 42), get("test", "", &[42])],
    ),
    (
        "the same pattern is refused",
        &[
            insert("agent1", "", 1),
            refuse("agent1", "", 2),
            get("agent1", "", &[1]),
        ],
    ),
    (
        "who was removed is not found",
        &[
            insert("agent1", "", 42),
            get("agent1", "", &[42]),
            delete("agent1", ""),
            get("agent1", "", &[]),
        ],
    ),
    (
        "removing an unknown caller does nothing",
        &[delete("nonexistent", "")],
    ),
    ("an unknown caller", &[get("nonexistent", "", &[])]),
    (
        "several",
        &[
            insert("agent1", "", 10),
            insert("agent2", "", 20),
            get("agent1", "", &[10]),
            get("agent2", "", &[20]),
        ],
    ),
    (
        "any agent",
        &[
            insert("", "192.168.1.1", 1),
            get("curl", "192.168.1.1", &[1]),
            get("wget", "192.168.1.1", &[1]),
            get("", "192.168.1.1", &[1]),
            get("curl", "10.0.0.1", &[]),
        ],
    ),
    (
        "any address",
        &[
            insert("curl", "", 1),
            get("curl", "192.168.1.1", &[1]),
            get("curl", "10.0.0.1", &[1]),
            get("curl", "", &[1]),
            get("wget", "192.168.1.1", &[]),
        ],
    ),
    (
        "both exact come before one; then the weightier field",
        &[
            insert("", "192.168.1.1", 5),
            insert("curl", "", 15),
            insert("curl", "192.168.1.1", 10),
            differing(
                "curl",
                "192.168.1.1",
                [&[10, 15, 5], &[10, 5, 15], &[10, 5, 15]],
            ),
            delete("curl", "192.168.1.1"),
            differing("curl", "192.168.1.1", [&[15, 5], &[5, 15], &[5, 15]]),
        ],
    ),
    (
        "an exact pattern and a prefix know only their own",
        &[
            insert("curl", "192.168.1.1", 10),
            insert("wget", "", 20),
            get("curl", "10.0.0.1", &[]),
            get("wget", "10.0.0.1", &[20]),
            get("firefox", "192.168.1.1", &[]),
        ],
    ),
    ("all any is refused", &[refuse("*", "", 1)]),
    (
        "a prefix of the agent",
        &[
            insert("xen_api_libs/*", "192.168.1.1", 7),
            get("xen_api_libs/1.2", "192.168.1.1", &[7]),
            get("xen_api/1.2", "192.168.1.1", &[]),
            insert("", "192.168.1.1", 5),
            insert("xen_api_libs/*", "192.168.1.2", 9),
            get("xen_api_libs/1.2", "192.168.1.1", &[7, 5]),
        ],
    ),
    (
        "a ladder of eight",
        &[
            insert("curl/*", "", 7),
            insert("curl/1.2", "192.168.1.1", 1),
            insert("", "192.168.*", 8),
            insert("curl/*", "192.168.1.1", 3),
            insert("curl/1.2", "", 4),
            insert("", "192.168.1.1", 6),
            insert("curl/1.2", "192.168.*", 2),
            insert("curl/*", "192.168.*", 5),
            differing(
                "curl/1.2",
                "192.168.1.1",
                [
                    &[1, 2, 3, 4, 5, 6, 7, 8],
                    &[1, 3, 2, 5, 6, 8, 4, 7],
                    // 2, 3, 4, 6 have one exact field, of 80, 72, 64 and 32 bits in all;
                    // 5, 7, 8 have none, and 56, 40 and 16 bits.
                    &[1, 2, 3, 4, 6, 5, 7, 8],
                ],
            ),
        ],
    ),
    (
        "the longer prefix of the agent",
        &[
            insert("abc*", "10.0.0.1", 30),
            insert("ab*", "10.0.0.1", 20),
            insert("a*", "10.0.0.1", 10),
            differing(
                "abc/foo",
                "10.0.0.1",
                [&[10, 20, 30], &[30, 20, 10], &[30, 20, 10]],
            ),
        ],
    ),
    (
        "the longer prefix of the address",
        &[
            insert("curl/1.2", "10.0.0.*", 200),
            insert("curl/1.2", "10.0.*", 100),
            differing(
                "curl/1.2",
                "10.0.0.5",
                [&[100, 200], &[200, 100], &[200, 100]],
            ),
        ],
    ),
];

/// Calls by agent and address, with who is registered in the end, by the least recently
/// called first.
pub(crate) struct AutoRegistration {
    /// The name that the row shows.
    pub(crate) name: &'static str,
    /// `auto_register`.
    pub(crate) limit: i64,
    /// Made through the API before.
    pub(crate) made: &'static [(&'static str, &'static str)],
    /// In order.
    pub(crate) calls: &'static [(&'static str, &'static str)],
    /// The agents that registered themselves.
    pub(crate) registered: &'static [&'static str],
}

/// Automatic registration, and eviction.
pub(crate) const AUTO_REGISTRATION: &[AutoRegistration] = &[
    AutoRegistration {
        name: "the least recently called is forgotten",
        limit: 2,
        made: &[],
        calls: &[
            ("agent-1", "10.0.0.1"),
            ("agent-2", "10.0.0.2"),
            ("agent-1", "10.0.0.1"),
            ("agent-3", "10.0.0.3"),
        ],
        registered: &["agent-1", "agent-3"],
    },
    AutoRegistration {
        name: "who was made neither counts nor is forgotten",
        limit: 2,
        made: &[("manual-agent", "192.168.0.1")],
        calls: &[
            ("agent-1", "10.0.0.1"),
            ("agent-2", "10.0.0.2"),
            ("agent-3", "10.0.0.3"),
        ],
        registered: &["agent-2", "agent-3"],
    },
    AutoRegistration {
        name: "0 is off",
        limit: 0,
        made: &[],
        calls: &[("agent-1", "10.0.0.1"), ("agent-2", "10.0.0.2")],
        registered: &[],
    },
    AutoRegistration {
        name: "a negative number is as many as there can be",
        limit: -1,
        made: &[],
        calls: &[
            ("agent-1", "10.0.0.1"),
            ("agent-2", "10.0.0.2"),
            ("agent-3", "10.0.0.3"),
        ],
        registered: &["agent-1", "agent-2", "agent-3"],
    },
];

/// How a field of text is read: as written, its literal, whether it is exact.
pub(crate) const PATTERN_PARSE: &[(&str, &str, bool)] = &[
    ("", "", false),
    ("*", "", false),
    ("curl*", "curl", false),
    ("curl/8.0", "curl/8.0", true),
    ("10.1.*", "10.1.", false),
    ("a*b", "a*b", true),
    ("**", "*", false),
];
