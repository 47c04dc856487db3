//! TLS to the server: rustls with ring.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::dsn::Trust;

/// Why certificates cannot be checked as the address asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The file of `sslrootcert` cannot be used.
    #[error("sslrootcert={path} cannot be used: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has no authorities.
    #[error(
        "sslmode=verify-full needs certificates of authorities, and this system has none: name a file by sslrootcert"
    )]
    NoSystemRoots,
}

/// How to make TLS sessions.
pub(super) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, TrustError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions of TLS");
    let mut config = match trust {
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth(),
        Trust::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(TrustError::NoSystemRoots);
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::File(path) => {
            let refused = |reason: String| TrustError::File { path: path.display().to_string(), reason };
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| refused(error.to_string()))?;
            let mut roots = RootCertStore::empty();
            for certificate in certificates {
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(refused("there is no certificate in it".into()));
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    // What PostgreSQL 17 asks of clients that begin with TLS at once; earlier servers ignore it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

/// Takes any certificate, as `prefer` and `require` mean everywhere: the line is encrypted, the server is not proved.
/// That the server has the key of the certificate is still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
