//! How errors are defined: the variant, the field that is wrong, and the message in one place. The
//! library that derives errors would be a dependency, and this crate has only the decision core.

/// An enum of errors. A message is what follows the name of the field that is wrong.
macro_rules! errors {
    ($(#[$meta:meta])* pub enum $Error:ident {$(
        $(#[$about:meta])*
        $Variant:ident $(($value:ident: $Of:ty))? $({$($(#[$note:meta])* $name:ident: $Type:ty,)+})?
            in $wrong:expr, ($($told:tt)+);
    )+}) => {
        $(#[$meta])*
        pub enum $Error {$(
            $(#[$about])*
            $Variant $(($Of))? $({$($(#[$note])* $name: $Type,)+})?,
        )+}

        impl $Error {
            /// The name of the field that is wrong.
            #[must_use]
            #[allow(unused_variables, reason = "few names depend on the values")]
            pub const fn field(&self) -> &'static str {
                match self {
                    $(Self::$Variant $(($value))? $({$($name),+})? => $wrong,)+
                }
            }
        }

        impl core::fmt::Display for $Error {
            #[allow(unused_variables, reason = "few messages have all values")]
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.field())?;
                match self {
                    $(Self::$Variant $(($value))? $({$($name),+})? => write!(f, $($told)+),)+
                }
            }
        }

        impl core::error::Error for $Error {}
    };
}
pub(crate) use errors;
