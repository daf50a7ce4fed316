// How two roles of a run prove to each other that they know its token, without sending it.
//
// The side that accepted a connection sends a random challenge. The side that connected answers with a
// random number of its own and with HMAC-SHA-256(token, its part, challenge, number). The accepting side
// checks that and proves itself in the same way. Random numbers make a recorded answer worthless, and the
// name of the part keeps one side from being used to answer for the other.
//
// SHA-256 follows FIPS 180-4, HMAC follows RFC 2104. tests/unit/byteps_build/test_token_proof.py compares
// them with Python's.
#ifndef PS_TOKEN_PROOF_H_
#define PS_TOKEN_PROOF_H_

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

#include <string>

namespace ps {

const size_t kProofSize = 32;

inline uint32_t RotateRight(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

inline void Sha256Block(const uint8_t* block, uint32_t* state) {
  static const uint32_t kRound[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 | uint32_t(block[4 * i + 2]) << 8 |
           block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t s0 = RotateRight(w[i - 15], 7) ^ RotateRight(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t s1 = RotateRight(w[i - 2], 17) ^ RotateRight(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  uint32_t v[8];
  memcpy(v, state, sizeof(v));
  for (int i = 0; i < 64; ++i) {
    uint32_t s1 = RotateRight(v[4], 6) ^ RotateRight(v[4], 11) ^ RotateRight(v[4], 25);
    uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    uint32_t t1 = v[7] + s1 + choice + kRound[i] + w[i];
    uint32_t s0 = RotateRight(v[0], 2) ^ RotateRight(v[0], 13) ^ RotateRight(v[0], 22);
    uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    memmove(v + 1, v, 7 * sizeof(v[0]));
    v[4] += t1;
    v[0] = t1 + s0 + majority;
  }
  for (int i = 0; i < 8; ++i) state[i] += v[i];
}

inline std::string Sha256(std::string text) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t bits = 8 * static_cast<uint64_t>(text.size());
  text += '\x80';
  text.append((120 - text.size() % 64) % 64, '\0');  // up to 8 bytes before the end of a block
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  for (size_t i = 0; i < text.size(); i += 64) {
    Sha256Block(reinterpret_cast<const uint8_t*>(text.data()) + i, state);
  }
  std::string digest;
  for (uint32_t word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  }
  return digest;
}

inline std::string HmacSha256(std::string key, const std::string& text) {
  if (key.size() > 64) key = Sha256(key);
  key.resize(64, '\0');
  std::string inner = key, outer = key;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  return Sha256(outer + Sha256(inner + text));
}

// Takes the same time wherever the two differ.
inline bool SameProof(const std::string& expected, const uint8_t* found) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < kProofSize; ++i) {
    difference = difference | (static_cast<uint8_t>(expected[i]) ^ found[i]);
  }
  return difference == 0;
}

inline bool FillRandomly(uint8_t* to, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t count = getrandom(to + got, size - got, 0);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) got += count;
  }
  return true;
}

// What goes over a new connection before any message. Random numbers and proofs have kProofSize bytes.
struct Challenge {  // from the side that accepted
  uint32_t magic;
  uint8_t random[kProofSize];
};

struct Hello {  // from the side that connected
  uint32_t magic;
  uint8_t random[kProofSize];
  uint8_t proof[kProofSize];
};

struct Verdict {  // from the side that accepted; zeros where the proof was wrong
  uint32_t welcome;
  uint8_t proof[kProofSize];
};

const uint32_t kHelloMagic = 0x64786832;

inline std::string Proof(const std::string& token, const char* part, const uint8_t* challenge, const uint8_t* random) {
  std::string text = std::string("dynamix data plane 1, ") + part + '\n';
  text.append(reinterpret_cast<const char*>(challenge), kProofSize);
  text.append(reinterpret_cast<const char*>(random), kProofSize);
  return HmacSha256(token, text);
}

inline std::string ProofOfConnecting(const std::string& token, const uint8_t* challenge, const uint8_t* random) {
  return Proof(token, "connecting", challenge, random);
}

inline std::string ProofOfAccepting(const std::string& token, const uint8_t* challenge, const uint8_t* random) {
  return Proof(token, "accepting", challenge, random);
}

}  // namespace ps

#endif  // PS_TOKEN_PROOF_H_
