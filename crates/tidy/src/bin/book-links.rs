//! A preprocessor of mdBook: links that lead out of `docs/` become links to the repository, because
//! the HTML has only `docs/`. `docs/book.toml` names it.
#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use serde_json::Value;

fn main() -> ExitCode {
    // mdBook first asks `supports RENDERER`. This preprocessor is for HTML alone.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [question, renderer] = &arguments[..] {
        return if question == "supports" && renderer == "html" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match rewrite() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("book-links: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads `[context, book]`, and writes the book.
fn rewrite() -> serde_json::Result<()> {
    let (_, mut book): (Value, Value) = serde_json::from_reader(io::stdin().lock())?;
    remora_tidy::lead_out_of_all(&mut book);
    serde_json::to_writer(io::stdout().lock(), &book)
}
