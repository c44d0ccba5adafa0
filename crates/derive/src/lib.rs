//! The derive macros `#[derive(Record)]` and `#[derive(Key)]` for structs.
//!
//! The library `remora` exports both macros beside its traits of the same names. The pages of the
//! traits say what they are for. This crate is useful only with that library.
//!
//! A derived encoding is the sequence of the fields' encodings, in the order in which the struct
//! declares the fields, and without padding.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{ToTokens, quote};
use syn::{Data, DeriveInput, Error, Fields, Index, LitStr, Member, Type, parse_macro_input};

/// Derives `remora::Record` for a struct whose fields are records.
///
/// The schema lists the struct's fields and their types: `Account { balance: i64 }`. With
/// `#[record(schema = "...")]` the schema is that text instead. So it does not change when a name
/// in the program changes.
#[proc_macro_derive(Record, attributes(record))]
pub fn derive_record(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    record(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives `remora::Key` for a struct whose fields are keys.
///
/// Keys are ordered by their first field, then by their second, and so on, as derived `Ord` does.
#[proc_macro_derive(Key)]
pub fn derive_key(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    key(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn record(input: &DeriveInput) -> Result<Tokens, Error> {
    let fields = fields(input, "Record")?;
    let schema = match schema(input)? {
        Some(schema) => quote!(#schema.to_owned()),
        None => listed(input, &fields),
    };
    let schema = quote! {
        fn schema() -> ::std::string::String { #schema }
    };
    Ok(implementation(input, &fields, &quote!(::remora::Record), &schema))
}

fn key(input: &DeriveInput) -> Result<Tokens, Error> {
    Ok(implementation(input, &fields(input, "Key")?, &quote!(::remora::Key), &Tokens::new()))
}

/// A field of a struct: its name, and its type.
type Field<'i> = (Member, &'i Type);

fn fields<'i>(input: &'i DeriveInput, what: &str) -> Result<Vec<Field<'i>>, Error> {
    let Data::Struct(data) = &input.data else {
        let wrong =
            format!("{what} can be derived for structs only: not every sequence of bytes is an enum or a union");
        return Err(Error::new_spanned(&input.ident, wrong));
    };
    let member = |(at, field): (usize, &'i syn::Field)| {
        let member = field.ident.clone().map_or(Member::Unnamed(Index::from(at)), Member::Named);
        (member, &field.ty)
    };
    Ok(data.fields.iter().enumerate().map(member).collect())
}

/// Returns the text of `#[record(schema = "...")]`.
fn schema(input: &DeriveInput) -> Result<Option<LitStr>, Error> {
    let mut schema = None;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("record")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("schema") {
                return Err(meta.error("expected `schema = \"...\"`"));
            }
            schema = Some(meta.value()?.parse()?);
            Ok(())
        })?;
    }
    Ok(schema)
}

/// Returns the schema that lists the fields' names and schemas, after the struct's name.
fn listed(input: &DeriveInput, fields: &[Field<'_>]) -> Tokens {
    let name = input.ident.to_string();
    let is_named = matches!(&input.data, Data::Struct(data) if matches!(data.fields, Fields::Named(_)));
    let (open, close) = if is_named { (" { ", " }") } else { ("(", ")") };
    let listed = fields.iter().map(|(member, field)| {
        let prefix = if is_named { format!("{}: ", member.to_token_stream()) } else { String::new() };
        quote!(::std::format!("{}{}", #prefix, <#field as ::remora::Record>::schema()))
    });
    quote! {
        let fields: &[::std::string::String] = &[#(#listed),*];
        ::std::format!("{}{}{}{}", #name, #open, fields.join(", "), #close)
    }
}

/// Returns the implementation of a trait that encodes field by field.
fn implementation(input: &DeriveInput, fields: &[Field<'_>], of: &Tokens, more: &Tokens) -> Tokens {
    let name = &input.ident;
    let mut generics = input.generics.clone();
    if !generics.params.is_empty() {
        let wanted = fields.iter().map(|(_, field)| syn::parse_quote!(#field: #of));
        generics.make_where_clause().predicates.extend(wanted.collect::<Vec<syn::WherePredicate>>());
    }
    let (of_impl, of_type, bounds) = generics.split_for_impl();
    let members: Vec<_> = fields.iter().map(|(member, _)| member).collect();
    let types: Vec<_> = fields.iter().map(|(_, field)| field).collect();
    quote! {
        #[automatically_derived]
        impl #of_impl #of for #name #of_type #bounds {
            const BYTES: usize = 0 #(+ <#types as #of>::BYTES)*;
            #more
            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                let rest = bytes;
                #(
                    let (now, rest) = rest.split_at_mut(<#types as #of>::BYTES);
                    #of::encode(&self.#members, now);
                )*
                let _ = rest;
            }
            #[inline]
            fn decode(bytes: &[u8]) -> Self {
                let mut rest = bytes;
                let decoded = #name { #(
                    #members: {
                        let (now, behind) = rest.split_at(<#types as #of>::BYTES);
                        rest = behind;
                        #of::decode(now)
                    },
                )* };
                let _ = rest;
                decoded
            }
        }
    }
}
