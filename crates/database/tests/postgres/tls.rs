//! TLS as the address asks for it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use database::postgres::{Connector, TrustError};
use database::{Class, Script, Sql};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use testing::postgres::{Options, Server};

use crate::{connector, dsn, timeouts};

static IS_ENCRYPTED: Sql = Sql::same("test.ssl", "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()");

/// Writes a file that the server's account owns and nobody else reads.
fn write(server: &Server, name: &str, text: &str) -> PathBuf {
    let path = server.folder().join(name);
    let owner = std::fs::metadata(server.folder().join("data")).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    path
}

/// A server with a certificate for `localhost`, and the file of the authority that signed it.
fn encrypted() -> (Server, PathBuf) {
    let server = Options::new().start();
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_text = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let roots = write(&server, "roots.pem", &authority_text);
    let set = |name: &str, path: &Path| {
        server.sql(&format!("ALTER SYSTEM SET {name} = '{}'", path.display()));
    };
    set("ssl_cert_file", &write(&server, "server.pem", &certificate.pem()));
    set("ssl_key_file", &write(&server, "server.key", &key.serialize_pem()));
    server.sql("ALTER SYSTEM SET ssl = on");
    server.sql("SELECT pg_reload_conf()");
    (server, roots)
}

async fn is_encrypted(text: String) -> Result<bool, Class> {
    let mut connection = connector(text).connect().await.map_err(|error| error.class)?;
    assert!(!connection.is_behind_pooler(), "seen through TLS too");
    Ok(connection.read(Script::statement(&IS_ENCRYPTED, [], |answer| answer.rows[0].bool(0))).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_encrypts_and_checks_what_it_says() {
    let (server, roots) = encrypted();
    let address = server.address();
    let by = |host: &str, options: String| {
        let host = format!("{host}:{}", address.port());
        format!("{}?{options}", server.dsn().replace(&address.to_string(), &host))
    };
    let verified = format!("sslmode=verify-full&sslrootcert={}", roots.display());
    // The server takes up its settings a moment after it was told to.
    crate::within(async { while is_encrypted(by("localhost", "sslmode=require".into())).await != Ok(true) {} }).await;
    assert_eq!(is_encrypted(by("127.0.0.1", "sslmode=require".into())).await, Ok(true), "any certificate");
    assert_eq!(is_encrypted(by("127.0.0.1", "sslmode=prefer".into())).await, Ok(true));
    assert_eq!(is_encrypted(by("127.0.0.1", "sslmode=disable".into())).await, Ok(false));
    assert_eq!(is_encrypted(by("localhost", verified.clone())).await, Ok(true));
    assert_eq!(is_encrypted(by("127.0.0.1", verified)).await, Err(Class::Unavailable), "another name");
    let (_other, foreign) = encrypted();
    let foreign = format!("sslmode=verify-full&sslrootcert={}", foreign.display());
    assert_eq!(is_encrypted(by("localhost", foreign)).await, Err(Class::Unavailable), "another authority");
}

#[test]
fn authorities_that_cannot_be_read_are_told_at_once() {
    let error = Connector::new(dsn("postgres://h/d?sslmode=verify-full&sslrootcert=/no/such/file"), timeouts());
    assert!(matches!(error, Err(TrustError::File { ref path, .. }) if path == "/no/such/file"), "{error:?}");
    let empty = Connector::new(dsn("postgres://h/d?sslmode=verify-full&sslrootcert=/dev/null"), timeouts());
    assert!(matches!(empty, Err(TrustError::File { .. })), "{empty:?}");
}
