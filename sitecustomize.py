import sys
sys.path += ["/tmp/work/fw-site", "/tmp/work/fw-lit-site"]
