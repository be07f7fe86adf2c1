//! The macro that makes, from one list of fields, the value to write, the value that is read, and the rows of the
//! reference.

/// A field, as the reference shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDefinition {
    /// The name.
    pub name: &'static str,
    /// The type and the unit.
    pub words: &'static str,
    /// The first schema that has it.
    pub since: u8,
    /// The meaning, in Markdown.
    pub meaning: &'static str,
}

/// Defines the fields of lines, in their order.
macro_rules! fields {
    (
        $(#[$given_meta:meta])* given $Input:ident;
        $(#[$found_meta:meta])* found $Output:ident;
        $(#[$key_meta:meta])* key $Key:ident;
        $($name:ident: $Kind:ty, $since:literal, $meaning:literal;)*
    ) => {
        $(#[$given_meta])*
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(non_snake_case, reason = "one field has the name of z/VM")]
        pub struct $Input<'a> {
            $(#[doc = $meaning] pub $name: <$Kind as $crate::kind::Kind>::Input<'a>,)*
        }

        $(#[$found_meta])*
        #[derive(Debug, Default)]
        #[allow(non_snake_case, reason = "one field has the name of z/VM")]
        pub struct $Output<'a> {
            $(#[doc = $meaning] pub $name: <$Kind as $crate::kind::Kind>::Output<'a>,)*
        }

        $(#[$key_meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "they are named as the fields")]
        pub(crate) enum $Key {
            $($name,)*
        }

        impl $Key {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];
            pub(crate) const FIELDS: &[$crate::fields::FieldDefinition] = &[$($crate::fields::FieldDefinition {
                name: stringify!($name),
                words: <$Kind as $crate::kind::Kind>::WORDS,
                since: $since,
                meaning: $meaning,
            },)*];

            /// The set of these fields.
            pub(crate) const fn set(keys: &[Self]) -> u64 {
                let (mut set, mut nth) = (0, 0);
                while nth < keys.len() {
                    set |= 1 << keys[nth] as u64;
                    nth += 1;
                }
                set
            }
        }

        impl $Input<'_> {
            /// Appends the fields of a set, each after a comma.
            // Inlined: with a set that is known to the compiler, no field is asked for.
            #[inline(always)]
            pub(crate) fn write_fields(&self, out: &mut Vec<u8>, set: u64) {
                $(if set & 1 << $Key::$name as u64 != 0 {
                    let key = concat!(",\"", stringify!($name), "\":");
                    <$Kind as $crate::kind::Kind>::write(out, key, self.$name);
                })*
            }
        }

        impl<'de> serde::Deserialize<'de> for $Output<'de> {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Object;
                impl<'de> serde::de::Visitor<'de> for Object {
                    type Value = $Output<'de>;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a line of the log")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<Self::Value, A::Error> {
                        let mut found = $Output::default();
                        let mut next = 0;
                        while let Some(name) = map.next_key::<$crate::kind::Word<'_>>()? {
                            let Some(at) = $crate::fields::position($Key::FIELDS, &name.0, next) else {
                                map.next_value::<serde::de::IgnoredAny>()?;
                                continue;
                            };
                            next = at + 1;
                            match $Key::ALL[at] {
                                $($Key::$name => {
                                    let seed = $crate::kind::Seed::<$Kind>(std::marker::PhantomData);
                                    found.$name = map.next_value_seed(seed)?;
                                })*
                            }
                        }
                        Ok(found)
                    }
                }
                from.deserialize_map(Object)
            }
        }
    };
}
pub(crate) use fields;

/// The place of a field. A sidecar writes fields in their order, so the search begins with the one that is expected next.
pub(crate) fn position(fields: &[FieldDefinition], name: &str, next: usize) -> Option<usize> {
    let (before, after) = fields.split_at(next.min(fields.len()));
    let is_it = |field: &FieldDefinition| field.name == name;
    match after.iter().position(is_it) {
        Some(at) => Some(next + at),
        None => before.iter().position(is_it),
    }
}

/// The rows of a table of the reference.
pub(crate) fn rows<'f>(fields: impl Iterator<Item = &'f FieldDefinition>) -> String {
    let mut rows = String::from("| field | type | since | meaning |\n|---|---|---|---|\n");
    for FieldDefinition {
        name,
        words,
        since,
        meaning,
    } in fields
    {
        rows.push_str(&format!("| `{name}` | {words} | {since} | {meaning} |\n"));
    }
    rows
}
