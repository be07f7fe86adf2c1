//! Sections that need a feature which this build does not have.

use crate::options::Notes;

use super::super::backend_tls::first_with_tls;
use super::super::sections::Sections;

/// The optional features of a build.
#[derive(Clone, Copy)]
pub(in crate::config) struct Features {
    leases: bool,
    otlp: bool,
    quotas: bool,
    tls: bool,
}

impl Features {
    /// The features of this build.
    pub(super) const BUILT: Self = Self {
        leases: cfg!(feature = "leases"),
        otlp: cfg!(feature = "otlp"),
        quotas: cfg!(feature = "quotas"),
        tls: cfg!(feature = "tls"),
    };
    #[cfg(test)]
    pub(in crate::config) const NONE: Self = Self {
        leases: false,
        otlp: false,
        quotas: false,
        tls: false,
    };
}

/// Notes each section that needs a feature which is missing, with the name of the feature.
pub(in crate::config) fn check(all: &Sections, built: Features, notes: &Notes) {
    if !built.tls {
        let cause = "this build has no TLS";
        for listen in all.listen.iter().flatten() {
            if listen.tls.section.given {
                let cure = "build it with --features tls, or leave tls out";
                notes.error(&listen.tls.section, cause, cure);
            }
        }
        if let Some(backend) = first_with_tls(&all.backend) {
            let cure = "build it with --features tls, or give an address without TLS";
            notes.error(backend, cause, cure);
        }
    }
    if !built.leases && all.coordinate.section.section.given {
        let cure = "build it with --features leases, or leave [coordinate] out";
        let section = &all.coordinate.section.section;
        notes.error(section, "this build has no leases", cure);
    }
    if !built.quotas && all.quota_store.store.section.given && !all.quota_store.is_memory() {
        let store = &all.quota_store.store.engine;
        let name = store.value.name();
        let cure = "build it with --features quotas, or write engine = \"memory\"";
        notes.error(store, format!("this build has no quotas in {name}"), cure);
    }
    if !built.otlp && all.trace.otlp.given {
        let cure = "build it with --features otlp, or leave otlp out";
        notes.error(&all.trace.otlp, "this build sends no spans", cure);
    }
}
