//! The checks there are: their names, their groups, and the pages that explain them.

/// Subjects of checks, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The config file.
    Config,
    /// The machine on which the command runs.
    Machine,
    /// The certificates, ours and those of authorities.
    Certificates,
    /// The addresses for clients.
    Listeners,
    /// The address for operators.
    Admin,
    /// The servers behind.
    Backend,
    /// The store of the quotas.
    Stores,
    /// The servers that share limits out.
    Leases,
}

impl Group {
    /// The word in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Machine => "machine",
            Self::Certificates => "certificates",
            Self::Listeners => "listeners",
            Self::Admin => "admin",
            Self::Backend => "backend",
            Self::Stores => "stores",
            Self::Leases => "leases",
        }
    }

    /// The heading on a terminal.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Machine => "this machine",
            Self::Stores => "the store of the quotas",
            Self::Leases => "lease servers",
            other => other.word(),
        }
    }
}

/// A kind of check. Its name never changes, so programs can rely on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckKind {
    /// Subject of the check.
    pub group: Group,
    /// Name of the check in JSON.
    pub name: &'static str,
    /// The page and the heading that explain it.
    pub page: &'static str,
}

macro_rules! checks {
    ($($constant:ident = $group:ident $name:literal $page:literal;)*) => {
        $(pub(super) const $constant: CheckKind = CheckKind {
            group: Group::$group,
            name: $name,
            page: $page,
        };)*

        /// Every kind of check, in the order in which they are shown.
        pub const CHECKS: &[CheckKind] = &[$($constant),*];
    };
}

checks! {
    CONFIG_FILE = Config "file" "docs/how-to/check-probe.md#config";
    CONFIG_MISTAKE = Config "mistake" "docs/how-to/check-probe.md#config";
    CONFIG_WARNING = Config "warning" "docs/how-to/check-probe.md#config";
    USER = Machine "user" "docs/how-to/check-probe.md#user";
    DESCRIPTORS = Machine "descriptors" "docs/how-to/check-probe.md#descriptors";
    SOMAXCONN = Machine "somaxconn" "docs/how-to/check-probe.md#somaxconn";
    LOCAL_PORTS = Machine "local_ports" "docs/how-to/check-probe.md#local-ports";
    CLOCK = Machine "clock" "docs/how-to/check-probe.md#clock";
    CLOCK_SOURCE = Machine "clock_source" "docs/how-to/check-probe.md#clock";
    STATE_FILE = Machine "state_file" "docs/how-to/check-probe.md#state-file";
    APACHE = Machine "apache" "docs/how-to/check-probe.md#apache";
    CERTIFICATE = Certificates "validity" "docs/how-to/check-probe.md#certificates";
    LISTENER = Listeners "listener" "docs/how-to/check-probe.md#listeners";
    ADMIN = Admin "address" "docs/how-to/check-probe.md#admin";
    SIDECAR = Admin "sidecar" "docs/how-to/check-probe.md#admin";
    BACKEND = Backend "answer" "docs/how-to/check-probe.md#backend";
    BACKEND_NAME = Backend "name" "docs/how-to/check-probe.md#backend";
    BACKEND_CLOCK = Backend "clock" "docs/how-to/check-probe.md#clock";
    STORE = Stores "server" "docs/how-to/check-probe.md#stores";
    LEASE_SERVER = Leases "server" "docs/how-to/check-probe.md#lease-servers";
}

/// Result of a check, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// All is well.
    Ok,
    /// The subject could not be checked here.
    Skipped,
    /// The subject works, but not as well as it should.
    Warning,
    /// The subject does not work.
    Failed,
}

impl CheckStatus {
    /// The word in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// The finding of a check: its result, the value found, and for a problem the cause and the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check.
    pub kind: CheckKind,
    /// The listener, server or value that was checked.
    pub about: String,
    /// Result of the check.
    pub status: CheckStatus,
    /// Value found.
    pub found: String,
    /// For a warning or a failure: what is wrong.
    pub cause: Option<String>,
    /// For a warning or a failure: what to do.
    pub cure: Option<String>,
}

impl CheckKind {
    /// Place of this kind among all checks.
    pub(super) fn order(self) -> usize {
        let place = CHECKS.iter().position(|kind| *kind == self);
        place.expect("every kind is in the list")
    }

    pub(super) fn ok(self, about: impl Into<String>, found: impl Into<String>) -> Finding {
        self.finding(CheckStatus::Ok, about, found)
    }

    pub(super) fn skipped(self, about: impl Into<String>, found: impl Into<String>) -> Finding {
        self.finding(CheckStatus::Skipped, about, found)
    }

    pub(super) fn warning(
        self,
        about: impl Into<String>,
        found: impl Into<String>,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) -> Finding {
        Finding {
            cause: Some(cause.into()),
            cure: Some(cure.into()),
            ..self.finding(CheckStatus::Warning, about, found)
        }
    }

    pub(super) fn failed(
        self,
        about: impl Into<String>,
        found: impl Into<String>,
        cause: impl Into<String>,
        cure: impl Into<String>,
    ) -> Finding {
        Finding {
            status: CheckStatus::Failed,
            ..self.warning(about, found, cause, cure)
        }
    }

    fn finding(
        self,
        status: CheckStatus,
        about: impl Into<String>,
        found: impl Into<String>,
    ) -> Finding {
        Finding {
            kind: self,
            about: about.into(),
            status,
            found: found.into(),
            cause: None,
            cure: None,
        }
    }
}
