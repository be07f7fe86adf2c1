//! Options: what a config can contain. Each stage defines the options of its sections with
//! `options!`, once: name, type, range, default, and the text for people. From that
//! definition come the reader with its messages, the config in effect, the example file, the
//! reference page, the names of the environment variables, and what needs a restart.
//!
//! The way of a config: `syntax` makes a `tree` in which every value knows its `place`, and
//! `environment` lays variables over it. `reader` takes each option out by its name, as the
//! `kind` of the option reads it. Nothing stops at the first mistake: all of them are `notes`,
//! and reported together (`problem`).

pub(crate) mod catalogue;
mod environment;
pub(crate) mod json;
pub mod kind;
mod nearest;
mod notes;
mod place;
mod problem;
mod reader;
pub mod shown;
pub mod syntax;
pub mod toml;
pub mod tree;

pub use catalogue::Catalogue;
pub use kind::{Mistake, Words};
pub use place::{ConfigPlace, LocatedKey};
pub use problem::{Problem, Problems, Severity};
pub use reader::{OptionMark, Options, Section, Setting};
pub use toml::{Restarts, Toml};

pub use kind::{ValueKind, words};
pub(crate) use nearest::nearest;
pub use notes::Notes;
pub use place::LineIndex;
pub use reader::{ConfigForm, ConfigReader};
pub use shown::did_you_mean;

/// Defines the options of a section.
///
/// ```ignore
/// options! {
///     /// The text above the section in the example.
///     pub struct Section => Settings {
///         /// What the option is for, and why one would change it.
///         workers: u32 = integer(1..=65536).of("calls").or(64);
///     }
/// }
/// ```
///
/// `Section` has a [`Setting`] for each option: its value, its place, and whether it was given
/// and could be read. That is what checks work with. `Settings` has the values alone, for the
/// stage; without `=> Settings` there is none. What follows `+` are further fields of the
/// settings, which other sections decide. What follows `required` are options without which
/// the config has an error: `Section` may lack their values, `Settings` never does.
#[macro_export]
macro_rules! options {
    (
        $(#[doc = $about:literal])*
        pub struct $Section:ident => $Settings:ident $(+ { $($more:tt)* })?
        $(required {
            $($(#[doc = $doc:literal])* $field:ident: $Type:ty = $option:expr;)*
        })? { $($options:tt)* }
    ) => {
        $crate::options::options! {
            $(#[doc = $about])*
            pub struct $Section {
                $($($(#[doc = $doc])* $field: Option<$Type> = $option;)*)?
                $($options)*
            }
        }
        $crate::options::settings! {
            $(#[doc = $about])*
            $Section => $Settings { $($($more)*)? } {
                $($($(#[doc = $doc])* $field: $Type,)*)?
            } { $($options)* }
        }
    };
    (
        $(#[doc = $about:literal])*
        pub struct $Section:ident {
            $($(#[doc = $doc:literal])* $field:ident: $Type:ty = $option:expr;)*
        }
    ) => {
        $(#[doc = $about])*
        #[allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]
        #[allow(unreachable_pub, reason = "a section may be private")]
        #[derive(Clone, Debug)]
        pub struct $Section {
            /// The section itself.
            #[allow(dead_code, reason = "not every check needs it")]
            pub section: $crate::options::OptionMark,
            $($(#[doc = $doc])* pub $field: $crate::options::Setting<$Type>,)*
        }

        impl $crate::options::Options for $Section {
            fn read(section: &$crate::options::Section<'_>) -> Self {
                section.about(concat!($($about, "\n"),*));
                Self {
                    section: section.mark(),
                    $($field: section.option(
                        stringify!($field),
                        concat!($($doc, "\n"),*),
                        $option,
                    ),)*
                }
            }

            fn write(&self, out: &mut $crate::options::Toml) {
                $(self.$field.write(stringify!($field), &$option, out);)*
            }
        }

        #[allow(dead_code, unreachable_pub, reason = "few sections are looked at option by option")]
        impl $Section {
            /// The options by the names of their fields.
            pub fn marks(&self) -> Vec<(&'static str, &$crate::options::OptionMark)> {
                vec![$((stringify!($field), &self.$field.mark)),*]
            }

            /// The options, to mute those that have no effect.
            pub fn marks_mut(&mut self) -> Vec<(&'static str, &mut $crate::options::OptionMark)> {
                vec![$((stringify!($field), &mut self.$field.mark)),*]
            }
        }
    };
}

/// The settings of a section: the values of its options, and what other sections decide.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $Section:ident => $Settings:ident {
            $($(#[doc = $more_doc:literal])* $more:ident: $More:ty,)*
        } {
            $($(#[doc = $required_doc:literal])* $required:ident: $Required:ty,)*
        } {
            $($(#[doc = $doc:literal])* $field:ident: $Type:ty = $option:expr;)*
        }
    ) => {
        $(#[doc = $about])*
        #[allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]
        #[allow(unreachable_pub, reason = "a section may be private")]
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Settings {
            $($(#[doc = $required_doc])* pub $required: $Required,)*
            $($(#[doc = $doc])* pub $field: $Type,)*
            $($(#[doc = $more_doc])* pub $more: $More,)*
        }

        impl $Section {
            /// The values of the options, with what other sections decide.
            #[allow(unreachable_pub, reason = "a section may be private")]
            pub fn settings(&self, $($more: $More),*) -> $Settings {
                $Settings {
                    $($required: self.$required.required(),)*
                    $($field: self.$field.value.clone(),)*
                    $($more,)*
                }
            }
        }
    };
}

pub use {options, settings};
