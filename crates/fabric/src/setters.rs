//! A macro that writes the setter methods of option types.

/// Adds a method for each named field to a type of options. The method sets the field, and converts
/// its argument into the field's type.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($options:ident { $($field:ident: $argument:ty),* $(,)? }) => {
        impl $options {$(
            #[doc = concat!("Sets [`", stringify!($options), "::", stringify!($field), "`](#structfield.", stringify!($field), ").")]
            #[must_use]
            #[allow(clippy::useless_conversion, reason = "some fields are of their arguments' types")]
            pub fn $field(mut self, $field: $argument) -> $options {
                self.$field = $field.into();
                self
            }
        )*}
    };
}
