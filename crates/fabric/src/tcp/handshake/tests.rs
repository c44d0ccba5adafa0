use super::*;

fn hellos(client_nonce: u8, server_nonce: u8) -> (ClientHello, ServerHello) {
    let client = ClientHello::new(Purpose::Verbs(ClientId(5)), true, [client_nonce; 32]);
    (client, ServerHello::new(&[4096, 64], true, [server_nonce; 32]))
}

#[test]
fn a_proof_holds_for_its_role_its_nonces_and_its_key_only() {
    let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
    let (client, server) = hellos(1, 2);
    let proof = client_proof(Some(key), &client, &server);
    assert!(check_client(Some(key), &client, &server, &proof));
    assert!(!check_client(Some(other), &client, &server, &proof));
    assert!(!check_client(Some(key), &client, &server, &server_proof(Some(key), &client, &server)), "a reflection");
    for (client_nonce, server_nonce) in [(1, 3), (3, 2)] {
        let (client, server) = hellos(client_nonce, server_nonce);
        assert!(!check_client(Some(key), &client, &server, &proof), "a replay");
    }
    let impostor = ClientHello::new(Purpose::Verbs(ClientId(6)), true, [1; 32]);
    assert!(!check_client(Some(key), &impostor, &server, &proof), "another client's proof");
    for byte in 0..32 {
        let mut bent = proof;
        bent[byte] ^= 1;
        assert!(!check_client(Some(key), &client, &server, &bent));
    }

    let proof = server_proof(Some(key), &client, &server);
    assert_eq!(check_server(Some(key.into()), &client, &server, &proof), Ok(Some(key)));
    for (first, second) in [(key, other), (other, key)] {
        let two = Some(Pair { first, second: Some(second) });
        assert_eq!(check_server(two, &client, &server, &proof), Ok(Some(key)), "the one that fits");
    }
    assert_eq!(check_server(Some(other.into()), &client, &server, &proof), Err(Refusal::WrongKey));
    assert_eq!(check_server(None, &client, &server, &proof), Err(Refusal::KeyNeeded));
    let keyless = ServerHello::new(&[4096, 64], false, [2; 32]);
    assert_eq!(check_server(Some(key.into()), &client, &keyless, &proof), Err(Refusal::NoKey));
}

#[test]
fn a_greeting_is_judged_as_soon_as_it_can_be() {
    let (client, _) = hellos(1, 2);
    let bytes = client.as_bytes();
    for length in 0..bytes.len() {
        assert_eq!(greeting(&bytes[..length]), Greeting::Incomplete);
    }
    assert_eq!(greeting(bytes), Greeting::Hello(client));
    assert_eq!(greeting(b"GET / HTTP/1.1"), Greeting::Foreign);
    assert_eq!(greeting(b"G"), Greeting::Foreign);
    assert_eq!(greeting(&[TLS_HANDSHAKE, 3, 1]), Greeting::OtherVersion);
    let mut newer = bytes.to_vec();
    newer[8] = 2;
    assert_eq!(greeting(&newer[..16]), Greeting::OtherVersion);
}

/// Pins version 1, byte for byte. A change of these bytes needs a new version.
#[test]
fn golden_bytes() {
    let client = ClientHello::new(Purpose::Administration, true, [9; 32]);
    let mut expected = b"REMORA\x00T\x01\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0".to_vec();
    expected.extend([9; 32]);
    assert_eq!(client.as_bytes(), expected);
    let server = ServerHello::new(&[4096, 64], false, [7; 32]);
    let mut expected =
        b"REMORA\x00T\x01\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x00\x10\0\0\0\0\0\0\x40\0\0\0\0\0\0\0".to_vec();
    expected.extend([0; 48]);
    expected.extend([7; 32]);
    assert_eq!(server.as_bytes(), expected);
    assert_eq!(server.region_bytes().collect::<Vec<_>>(), [4096, 64]);
}
