//! Feeds any line to the parser of inline commands. It must not panic, and the words that it finds
//! must read back when each byte of them is escaped.
#![no_main]

use remora_resp::Parser;

fn words(mut line: Vec<u8>) -> Option<Vec<Vec<u8>>> {
    line.push(b'\n');
    let mut parser = Parser::new();
    let command = parser.next(&mut &mut line[..]).ok()??;
    Some(command.arguments().map(<[u8]>::to_vec).collect())
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A star at the beginning is no inline command.
    let line: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != b'\n').skip_while(|byte| *byte == b'*').collect();
    let Some(found) = words(line) else { return };
    let escaped = |word: &Vec<u8>| {
        let bytes: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        format!("\"{bytes}\" ")
    };
    let line: String = found.iter().map(escaped).collect();
    if line.len() <= remora_resp::parse::LINE_BYTES_MAX {
        assert_eq!(words(line.into_bytes()), Some(found));
    }
});
