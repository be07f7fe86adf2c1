//! Parts of a config under one header: how each is found, and how it is written.

use crate::options::{Options, Section, Toml};

/// A part of the config under one header. Several parts may share a header.
pub trait ConfigPart {
    /// Reads what is below the header `key`.
    fn read_from(root: &Section<'_>, key: &'static str) -> Self;

    /// Writes the part with its header.
    fn write_under(&self, key: &str, out: &mut Toml);
}

impl<T: Options> ConfigPart for T {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        root.section(key).read()
    }

    fn write_under(&self, key: &str, out: &mut Toml) {
        out.header(format!("[{key}]"));
        self.write(out);
    }
}

/// A part that there may be several of.
pub(super) trait NamedPart: Options {
    const MAX: usize;

    /// The name that tells it from the others.
    fn name(&self) -> Option<&str>;
}

impl<T: NamedPart> ConfigPart for Vec<T> {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        root.each(key, T::MAX)
    }

    fn write_under(&self, key: &str, out: &mut Toml) {
        for entry in self {
            out.header(format!("[[{key}]]"));
            out.entry(entry.name());
            entry.write(out);
        }
    }
}
