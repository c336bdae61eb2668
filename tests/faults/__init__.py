"""The KV layer between real processes while messages are lost, bent and repeated, and peers die."""
